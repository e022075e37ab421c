// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"crypto/subtle"
	"io"
	"log"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

// Local is a machine on this host. Unlike a machine in a pod, which starts and stops with its container, it
// is started and stopped through this API, and can connect to other machines.
type Local struct {
	Machine Machine
	Guest   Guest
	Network Network
	Peer    Peer
	Run     Run
}

// Run starts and ends the guest of a machine on this host.
type Run interface {
	// Start starts the paused guest. After a success, later calls do nothing.
	Start(ctx context.Context) error
	// Stop asks the guest to shut down, and ends the run by force after gracePeriod; 0 means never. A second
	// call with the same ID has no effect, so that retries do not extend the grace period.
	Stop(ctx context.Context, id string, gracePeriod time.Duration) error
	// Quit ends the run at once. The disks stay consistent if QEMU responds to the quit command.
	Quit(ctx context.Context) error
	// Changed returns a channel that is closed at the next change of the status.
	Changed() <-chan struct{}
}

// Paths of the calls of Local, and of the stream of changes.
const (
	startPath   = "/v1/start"
	stopPath    = "/v1/stop"
	quitPath    = "/v1/quit"
	changesPath = "/v1/changes"
)

// NewLocalServer returns a server of a machine on this host, for clients with a token. The server stops when ctx ends.
func NewLocalServer(ctx context.Context, token string, m Local) *Server {
	guest := newGuestHandler(m.Guest, failure.InputWithin)
	mux := newHandler(m.Machine)
	for _, path := range []string{consolePath, execPath, interfacesPath, networkPath} {
		mux.Handle(path, guest)
	}
	handleCall(mux, "POST "+startPath, func(r *http.Request) (any, error) { return nil, m.Run.Start(r.Context()) })
	handleCall(mux, "POST "+quitPath, func(r *http.Request) (any, error) { return nil, m.Run.Quit(r.Context()) })
	handleCall(mux, "POST "+stopPath, func(r *http.Request) (any, error) {
		milliseconds, err := strconv.ParseUint(r.URL.Query().Get("within"), 10, 40)
		id := r.URL.Query().Get("id")
		if err != nil || id == "" {
			return nil, errRequest
		}
		return nil, m.Run.Stop(r.Context(), id, time.Duration(milliseconds)*time.Millisecond)
	})
	handleCall(mux, "POST "+wantedPath, func(r *http.Request) (any, error) {
		var wanted Wanted
		if err := readRequest(r, &wanted); err != nil {
			return nil, err
		}
		ports, err := m.Network.SetWanted(r.Context(), wanted)
		return servedPorts{ports}, err
	})
	mux.HandleFunc("GET "+dialPath, func(w http.ResponseWriter, r *http.Request) { serveDial(w, r, m.Network) })
	mux.HandleFunc("POST "+socketsPath, func(w http.ResponseWriter, r *http.Request) { serveSockets(r.Context(), w, m.Network) })
	mux.HandleFunc("POST "+joinPath, func(w http.ResponseWriter, _ *http.Request) { serveJoin(ctx, w, m.Peer) })
	mux.HandleFunc("GET "+changesPath, func(w http.ResponseWriter, r *http.Request) { serveChanges(w, r, m.Run) })
	return &Server{ctx: ctx, isLocal: true, http: newHTTPServer(ctx, requireToken(token, (&fence{}).refuseStale(mux)))}
}

// epochHeader has the epoch of the calling leader. A caller that is not a leader omits it, and is never fenced.
const epochHeader = "Drover-Epoch"

// fence remembers the highest epoch of the calls so far.
type fence struct {
	mu      sync.Mutex
	highest uint64
}

// refuseStale refuses calls with an epoch below the highest. Such a call comes from a former leader, and may have been
// delayed for a long time before this program received it.
func (f *fence) refuseStale(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := f.admitEpoch(r.Header.Get(epochHeader))
		if err != nil {
			sendAnswer(w, nil, err)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

func (f *fence) admitEpoch(text string) error {
	if text == "" {
		return nil
	}
	epoch, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return errRequest
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if epoch < f.highest {
		return failure.ErrFenced
	}
	f.highest = epoch
	return nil
}

// requireToken refuses requests without the token.
func requireToken(token string, handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		handler.ServeHTTP(w, r)
	})
}

// newHTTPServer returns a server that limits the time and the header of any request, even without credentials.
func newHTTPServer(ctx context.Context, handler http.Handler) *http.Server {
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &http.Server{
		Handler: handler, Protocols: &http1,
		ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, WriteTimeout: CallWithin + headerWithin, IdleTimeout: idleWithin,
		MaxHeaderBytes: maxHeader, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: log.New(io.Discard, "", 0), // clients could fill a log
	}
}

// Bytes of a stream of changes. They follow the header of the answer as they are, without HTTP, so that neither side
// needs memory beyond that of the connection.
const (
	// changedByte is sent at once and at each change, aliveByte as a heartbeat.
	changedByte, aliveByte = '!', '.'
	// aliveEvery is the interval between two heartbeats. A connection without a byte for deadAfter is lost.
	aliveEvery, deadAfter = 5 * time.Second, 15 * time.Second
)

// serveChanges sends changes until the client leaves.
func serveChanges(w http.ResponseWriter, r *http.Request, m Run) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = conn.SetReadDeadline(time.Time{})
		_, _ = conn.Read(make([]byte, 1)) // the client sends nothing, so this returns once it leaves
	}()
	ticker := time.NewTicker(aliveEvery)
	defer ticker.Stop()
	for send := hijackedHeader + string(changedByte); ; {
		next := m.Changed()
		if conn.SetWriteDeadline(deadlineAfter(sendWithin)) != nil {
			return
		}
		if _, err := conn.Write([]byte(send)); err != nil {
			return
		}
		select {
		case <-next:
			send = string(changedByte)
		case <-ticker.C:
			send = string(aliveByte)
		case <-left:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// NewLocalClient returns a client of a machine on this host. dial connects to the machine.
func NewLocalClient(token string, dial func(context.Context) (net.Conn, error)) *Client {
	netDial := func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }
	return &Client{
		base: "http://machine", header: http.Header{"Authorization": {"Bearer " + token}},
		token: token,
		http: http.Client{
			Timeout:       CallWithin + connectWithin,
			Transport:     &http.Transport{DialContext: netDial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		dialer: websocket.Dialer{NetDialContext: netDial, HandshakeTimeout: CallWithin, ReadBufferSize: terminal.ChunkSize, WriteBufferSize: 4 << 10},
	}
}

// Start calls Run.Start.
func (c *Client) Start(ctx context.Context) error {
	return c.makeCall(ctx, http.MethodPost, startPath, nil, nil)
}

// Stop calls Run.Stop.
func (c *Client) Stop(ctx context.Context, id string, gracePeriod time.Duration) error {
	query := "?id=" + id + "&within=" + strconv.FormatInt(gracePeriod.Milliseconds(), 10)
	return c.makeCall(ctx, http.MethodPost, stopPath+query, nil, nil)
}

// Quit calls Run.Quit.
func (c *Client) Quit(ctx context.Context) error {
	return c.makeCall(ctx, http.MethodPost, quitPath, nil, nil)
}

// SetEpoch sets the leader's epoch for the following calls; 0 means that the caller is not a leader. A machine that was
// called with a higher epoch answers failure.ErrFenced.
func (c *Client) SetEpoch(epoch uint64) {
	if c.header.Del(epochHeader); epoch != 0 {
		c.header.Set(epochHeader, strconv.FormatUint(epoch, 10))
	}
}

// Token returns the token that was given to NewLocalClient, or "" if the client is from NewClient.
func (c *Client) Token() string { return c.token }

// changesEvery is the minimum interval between two changes that Watch reports, since a hostile machine may send
// many.
const changesEvery = 20 * time.Millisecond

// sleepFor waits for d, or until ctx ends.
func sleepFor(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Watch calls onChange once the machine is reached, and at each change, until the connection ends. It
// fails with context.DeadlineExceeded if no heartbeat arrives. It needs little memory, since a driver
// watches many machines.
func (c *Client) Watch(ctx context.Context, onChange func()) error {
	conn, err := c.dialer.NetDialContext(ctx, "", "")
	if err != nil {
		return explainError(err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	head := "GET " + changesPath + " HTTP/1.1\r\nHost: machine\r\nAuthorization: " + c.header.Get("Authorization") + "\r\n\r\n"
	answer := make([]byte, len(hijackedHeader))
	err = conn.SetDeadline(deadlineAfter(deadAfter))
	if err == nil {
		_, err = conn.Write([]byte(head))
	}
	if err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	switch {
	case err != nil:
		return explainError(err)
	case string(answer) != hijackedHeader:
		return failure.ErrProtocol
	}
	for buffer := answer[:16]; ; {
		if err := conn.SetReadDeadline(deadlineAfter(deadAfter)); err != nil {
			return explainError(err)
		}
		n, err := conn.Read(buffer)
		if bytes.IndexByte(buffer[:n], changedByte) >= 0 {
			onChange()
			sleepFor(ctx, changesEvery)
		}
		if err != nil {
			return explainError(err)
		}
	}
}
