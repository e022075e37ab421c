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
)

const (
	// maxConnections bounds what the listener keeps for those who connect. Streams take no call's
	// place.
	maxConnections = 16 + maxStreams
	// headerWithin bounds a handshake, and then the head of a request; readWithin bounds a whole
	// request and idleWithin the time between two.
	headerWithin, readWithin, idleWithin = 5 * time.Second, 10 * time.Second, 30 * time.Second
)

// Server serves a machine.
type Server struct {
	ctx     context.Context // that of the requests
	http    *http.Server
	isLocal bool
}

// NewServer returns a server of a machine and its guest that works until ctx ends.
func NewServer(ctx context.Context, c Credentials, m Machine, g Guest) (*Server, error) {
	config, guest, err := c.serverConfig()
	if err != nil {
		return nil, err
	}
	server := newHTTPServer(ctx, byAuthority(guest, newGuestHandler(g, inputWithin), newHandler(m)))
	server.TLSConfig = config
	return &Server{ctx: ctx, http: server}, nil
}

// byAuthority serves the clients of one authority by its handler, and those of the other authority by
// another.
func byAuthority(guest *x509.Certificate, guests, others http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		chain := r.TLS.VerifiedChains[0]
		if chain[len(chain)-1].Equal(guest) {
			guests.ServeHTTP(w, r)
			return
		}
		others.ServeHTTP(w, r)
	})
}

// Serve serves on a listener. It closes connections from this host's own addresses: those are
// the guest's, which QEMU's network makes in its place. They do not count as connections, so
// that a guest cannot keep others away. A local server takes all connections.
func (s *Server) Serve(listener net.Listener) error {
	if s.isLocal {
		defer context.AfterFunc(s.ctx, func() { _ = s.http.Close() })()
		return s.http.Serve(netutil.LimitListener(listener, maxConnections))
	}
	return s.serve(outsideListener{listener, net.InterfaceAddrs})
}

func (s *Server) serve(listener net.Listener) error {
	defer context.AfterFunc(s.ctx, func() { _ = s.http.Close() })()
	return s.http.ServeTLS(netutil.LimitListener(listener, maxConnections), "", "")
}

// outsideListener accepts connections from other hosts alone.
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

func (l outsideListener) isOutside(remote net.Addr) bool {
	from, ok := addressOf(remote)
	if !ok || from.IsLoopback() {
		return false
	}
	all, err := l.addresses()
	for _, a := range all {
		if own, ok := addressOf(a); ok && own == from {
			return false
		}
	}
	return err == nil
}

// addressOf returns the address of a connection's end or of an interface.
func addressOf(a net.Addr) (netip.Addr, bool) {
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

// newHandler serves the calls.
func newHandler(m Machine) *http.ServeMux {
	mux := http.NewServeMux()
	handle(mux, "GET "+statusPath, func(r *http.Request) (any, error) { return m.Status(r.Context()) })
	handle(mux, "POST "+pausePath, func(r *http.Request) (any, error) { return nil, m.Pause(r.Context()) })
	handle(mux, "POST "+resumePath, func(r *http.Request) (any, error) { return nil, m.Resume(r.Context()) })
	handle(mux, "POST "+probePath, func(r *http.Request) (any, error) {
		port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
		if err != nil {
			return nil, errRequest
		}
		return nil, m.Probe(r.Context(), int32(port))
	})
	handle(mux, "POST "+growPath, func(r *http.Request) (any, error) {
		var sizes Sizes
		decoder := json.NewDecoder(r.Body)
		decoder.DisallowUnknownFields()
		if decoder.Decode(&sizes) != nil {
			return nil, errRequest
		}
		return m.Grow(r.Context(), sizes)
	})
	handle(mux, "POST "+gracePath, func(r *http.Request) (any, error) {
		seconds, err := strconv.ParseUint(r.URL.Query().Get("seconds"), 10, 32)
		if err != nil || seconds == 0 {
			return nil, errRequest
		}
		return nil, m.SetGracePeriod(r.Context(), time.Duration(seconds)*time.Second)
	})
	return mux
}

// handle serves a call that takes and returns little.
func handle(mux *http.ServeMux, pattern string, call func(*http.Request) (any, error)) {
	mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), CallWithin)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, maxRequest)
		answer, err := call(r)
		respond(w, answer, err)
	})
}

// errRequest : the client asks for what this program does not understand.
var errRequest = errors.New("the request is not understood")

// respond sends an answer, or an error as its name alone.
func respond(w http.ResponseWriter, answer any, err error) {
	code := http.StatusOK
	switch {
	case errors.Is(err, errRequest):
		code, answer = http.StatusBadRequest, nil
	case err != nil:
		code, answer = http.StatusUnprocessableEntity, ending{Failure: failureName(err)}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	if answer != nil {
		_ = json.NewEncoder(w).Encode(answer) // else the client learns it by what is missing
	}
}
