// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/net/netutil"

	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// maxConnections limits open connections: failure.MaxStreams for streams, plus 16 for calls.
	maxConnections = 16 + failure.MaxStreams
	// headerWithin limits the TLS handshake, and separately the reading of a request's header. readWithin limits the
	// reading of a whole request, and idleWithin the time between two requests.
	headerWithin, readWithin, idleWithin = 5 * time.Second, 10 * time.Second, 30 * time.Second
)

// Server serves the control API of a machine.
type Server struct {
	ctx     context.Context // ends the server
	http    *http.Server
	isLocal bool
}

// NewServer returns a server of a machine and its guest. It ends with ctx.
func NewServer(ctx context.Context, c Credentials, m Machine, g Guest) (*Server, error) {
	config, guestCA, err := c.serverConfig()
	if err != nil {
		return nil, err
	}
	server := newHTTPServer(ctx, routeByCA(guestCA, newGuestHandler(g, failure.InputWithin), newHandler(m)))
	server.TLSConfig = config
	return &Server{ctx: ctx, http: server}, nil
}

// NewProbeServer returns a server that serves only Machine.Probe, for Drover's other programs in the machine's container.
// It ends with ctx. To connect to it, use NewLocalClient with an empty token.
func NewProbeServer(ctx context.Context, m Machine) *Server {
	mux := http.NewServeMux()
	handleProbe(mux, m)
	return &Server{ctx: ctx, isLocal: true, http: newHTTPServer(ctx, mux)}
}

// routeByCA passes requests of clients whose certificate guestCA issued to guestHandler, and others to machineHandler.
func routeByCA(guestCA *x509.Certificate, guestHandler, machineHandler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chain := r.TLS.VerifiedChains[0]
		if chain[len(chain)-1].Equal(guestCA) {
			guestHandler.ServeHTTP(w, r)
			return
		}
		machineHandler.ServeHTTP(w, r)
	})
}

// Serve serves on a listener until the server's context ends. It closes connections from addresses of this
// host, which the guest could make through the network of its pod. They do not count towards maxConnections,
// so that a guest cannot keep other clients away. A local server applies neither rule, since only Drover's
// programs can connect to its listener.
func (s *Server) Serve(listener net.Listener) error {
	if s.isLocal {
		defer context.AfterFunc(s.ctx, func() { _ = s.http.Close() })()
		return s.http.Serve(listener)
	}
	return s.serveTLS(outsideListener{listener, net.InterfaceAddrs})
}

// serveTLS serves TLS on a listener until the context ends.
func (s *Server) serveTLS(listener net.Listener) error {
	defer context.AfterFunc(s.ctx, func() { _ = s.http.Close() })()
	return s.http.ServeTLS(netutil.LimitListener(listener, maxConnections), "", "")
}

// outsideListener accepts only connections from other hosts.
type outsideListener struct {
	net.Listener

	addresses func() ([]net.Addr, error)
}

// Accept implements net.Listener.
func (l outsideListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.isOutside(conn.RemoteAddr()) {
			return conn, err
		}
		_ = conn.Close()
	}
}

// isOutside reports whether an address belongs to another host. It reports false if this host's addresses are
// unknown.
func (l outsideListener) isOutside(remote net.Addr) bool {
	remoteIP, ok := ipOf(remote)
	if !ok || remoteIP.IsLoopback() {
		return false
	}
	all, err := l.addresses()
	for _, a := range all {
		if own, ok := ipOf(a); ok && own == remoteIP {
			return false
		}
	}
	return err == nil
}

// ipOf returns the IP address of one end of a connection, or of an interface.
func ipOf(a net.Addr) (netip.Addr, bool) {
	var ip net.IP
	switch a := a.(type) {
	case *net.TCPAddr:
		ip = a.IP
	case *net.IPNet:
		ip = a.IP
	}
	address, ok := netip.AddrFromSlice(ip)
	return address.Unmap(), ok
}

// newHandler returns a handler for the methods of Machine.
func newHandler(m Machine) *http.ServeMux {
	mux := http.NewServeMux()
	handleCall(mux, "GET "+statusPath, func(r *http.Request) (any, error) { return m.Status(r.Context()) })
	handleCall(mux, "POST "+pausePath, func(r *http.Request) (any, error) { return nil, m.Pause(r.Context()) })
	handleCall(mux, "POST "+resumePath, func(r *http.Request) (any, error) { return nil, m.Resume(r.Context()) })
	handleProbe(mux, m)
	handleCall(mux, "POST "+growPath, func(r *http.Request) (any, error) {
		var sizes Sizes
		if err := readRequest(r, &sizes); err != nil {
			return nil, err
		}
		return m.Grow(r.Context(), sizes)
	})
	handleCall(mux, "POST "+gracePath, func(r *http.Request) (any, error) {
		seconds, err := strconv.ParseUint(r.URL.Query().Get("seconds"), 10, 32)
		if err != nil || seconds == 0 {
			return nil, errRequest
		}
		return nil, m.SetGracePeriod(r.Context(), time.Duration(seconds)*time.Second)
	})
	return mux
}

func handleProbe(mux *http.ServeMux, m Machine) {
	handleCall(mux, "POST "+probePath, func(r *http.Request) (any, error) {
		port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
		if err != nil || port == 0 {
			return nil, errRequest
		}
		return nil, m.Probe(r.Context(), int32(port))
	})
}

// handleCall registers a call. A request may be at most maxRequest bytes long, and take at most CallWithin.
func handleCall(mux *http.ServeMux, pattern string, call func(*http.Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), CallWithin)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		answer, err := call(r)
		sendAnswer(w, answer, err)
	})
}

// readRequest decodes the body of r into request.
func readRequest(r *http.Request, request any) error {
	decoder := json.NewDecoder(r.Body)
	decoder.DisallowUnknownFields()
	if decoder.Decode(request) != nil {
		return errRequest
	}
	return nil
}

// errRequest means that the request of a client is invalid.
var errRequest = errors.New("the request is invalid")

// sendAnswer sends an answer, or the name of an error without its text.
func sendAnswer(w http.ResponseWriter, answer any, err error) {
	code := http.StatusOK
	switch {
	case errors.Is(err, errRequest):
		code, answer = http.StatusBadRequest, nil
	case err != nil:
		code, answer = http.StatusUnprocessableEntity, outcome{Failure: failure.NameOf(err)}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if answer != nil {
		_ = json.NewEncoder(w).Encode(answer) // the client notices an incomplete answer
	}
}
