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
)

// Local is a machine on this host: what a machine in a pod does by signals and its end, this one does when
// it is asked.
type Local interface {
	Machine
	Guest
	// Start resumes the guest for the first time. It may be repeated.
	Start(ctx context.Context) error
	// Stop has the guest shut down, and ends the run by force after a time; 0 means never. A call with the ID of
	// the one before changes nothing, so that a repeated call extends nothing.
	Stop(ctx context.Context, id string, within time.Duration) error
	// Quit ends the run at once, with the disks consistent if QEMU answers.
	Quit(ctx context.Context) error
	// Changed returns a channel that is closed when the status is about to be another.
	Changed() <-chan struct{}
}

// Paths of the calls of Local, and of the stream of changes.
const (
	startPath   = "/v1/start"
	stopPath    = "/v1/stop"
	quitPath    = "/v1/quit"
	changesPath = "/v1/changes"
)

// NewLocalServer returns a server of a machine on this host, for those who know a token. It works until ctx ends.
func NewLocalServer(ctx context.Context, token string, m Local) *Server {
	guest := newGuestHandler(m, inputWithin)
	mux := newHandler(m)
	for _, path := range []string{consolePath, execPath, interfacesPath} {
		mux.Handle(path, guest)
	}
	handle(mux, "POST "+startPath, func(r *http.Request) (any, error) { return nil, m.Start(r.Context()) })
	handle(mux, "POST "+quitPath, func(r *http.Request) (any, error) { return nil, m.Quit(r.Context()) })
	handle(mux, "POST "+stopPath, func(r *http.Request) (any, error) {
		milliseconds, err := strconv.ParseUint(r.URL.Query().Get("within"), 10, 40)
		id := r.URL.Query().Get("id")
		if err != nil || id == "" {
			return nil, errRequest
		}
		return nil, m.Stop(r.Context(), id, time.Duration(milliseconds)*time.Millisecond)
	})
	mux.HandleFunc("GET "+changesPath, func(w http.ResponseWriter, r *http.Request) { serveChanges(w, r, m) })
	return &Server{ctx: ctx, isLocal: true, http: newHTTPServer(ctx, byToken(token, (&fence{}).refuse(mux)))}
}

// epochHeader has the epoch of the leader that asks for a change. A call without one is no leader's, and is not
// compared.
const epochHeader = "Drover-Epoch"

// fence remembers the highest epoch of those who have asked for a change.
type fence struct {
	mu      sync.Mutex
	highest uint64
}

// refuse serves calls but those of an epoch below the highest: such a call may have waited here for longer than its
// leader led.
func (f *fence) refuse(served http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := f.admit(r.Header.Get(epochHeader))
		if err != nil {
			respond(w, nil, err)
			return
		}
		served.ServeHTTP(w, r)
	})
}

func (f *fence) admit(text string) error {
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
		return ErrFenced
	}
	f.highest = epoch
	return nil
}

// byToken serves those who know the token.
func byToken(token string, served http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) != 1 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		served.ServeHTTP(w, r)
	})
}

// newHTTPServer returns a server with limits for whoever connects.
func newHTTPServer(ctx context.Context, served http.Handler) *http.Server {
	var http1 http.Protocols
	http1.SetHTTP1(true)
	return &http.Server{
		Handler: served, Protocols: &http1,
		ReadHeaderTimeout: headerWithin, ReadTimeout: readWithin, WriteTimeout: CallWithin + headerWithin, IdleTimeout: idleWithin,
		MaxHeaderBytes: maxHeader, BaseContext: func(net.Listener) context.Context { return ctx },
		ErrorLog: log.New(io.Discard, "", 0), // whoever connects could fill a log
	}
}

// What a stream of changes has after the head of its answer: a byte for each change, the first at once, and one as a
// sign of life. It is no body, so that either end keeps nothing but a connection.
const (
	changed, alive = '!', '.'
	// aliveEvery is the interval between two signs of life, and deadAfter how long none may come.
	aliveEvery, deadAfter = 5 * time.Second, 15 * time.Second

	changesHead = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
)

// serveChanges sends changes until the other end leaves.
func serveChanges(w http.ResponseWriter, r *http.Request, m Local) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = conn.SetReadDeadline(time.Time{})
		_, _ = conn.Read(make([]byte, 1)) // nothing comes
	}()
	ticker := time.NewTicker(aliveEvery)
	defer ticker.Stop()
	for send := changesHead + string(changed); ; {
		next := m.Changed()
		if conn.SetWriteDeadline(after(sendWithin)) != nil {
			return
		}
		if _, err := conn.Write([]byte(send)); err != nil {
			return
		}
		select {
		case <-next:
			send = string(changed)
		case <-ticker.C:
			send = string(alive)
		case <-left:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// NewLocalClient returns a client of a machine on this host that dial connects to.
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
		dialer: websocket.Dialer{NetDialContext: netDial, HandshakeTimeout: CallWithin, ReadBufferSize: messageSize, WriteBufferSize: 4 << 10},
	}
}

// Start is that of Local.
func (c *Client) Start(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, startPath, nil, nil)
}

// Stop is that of Local.
func (c *Client) Stop(ctx context.Context, id string, within time.Duration) error {
	query := "?id=" + id + "&within=" + strconv.FormatInt(within.Milliseconds(), 10)
	return c.call(ctx, http.MethodPost, stopPath+query, nil, nil)
}

// Quit is that of Local.
func (c *Client) Quit(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, quitPath, nil, nil)
}

// SetEpoch has each further call carry the epoch of a leader; 0 is no leader's. A machine refuses an epoch below one
// that it was called with, by ErrFenced.
func (c *Client) SetEpoch(epoch uint64) {
	if c.header.Del(epochHeader); epoch != 0 {
		c.header.Set(epochHeader, strconv.FormatUint(epoch, 10))
	}
}

// Token returns the token of NewLocalClient.
func (c *Client) Token() string { return c.token }

// changesEvery is the least time between two changes that Watch reports: what answers may be hostile.
const changesEvery = 20 * time.Millisecond

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// Watch calls onChange once the machine is reached, and at each change, until the connection ends. It fails with
// context.DeadlineExceeded if no sign of life comes. Many machines are watched, so it keeps little.
func (c *Client) Watch(ctx context.Context, onChange func()) error {
	conn, err := c.dialer.NetDialContext(ctx, "", "")
	if err != nil {
		return explain(err)
	}
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	defer func() { _ = conn.Close() }()
	head := "GET " + changesPath + " HTTP/1.1\r\nHost: machine\r\nAuthorization: " + c.header.Get("Authorization") + "\r\n\r\n"
	answer := make([]byte, len(changesHead))
	err = conn.SetDeadline(after(deadAfter))
	if err == nil {
		_, err = conn.Write([]byte(head))
	}
	if err == nil {
		_, err = io.ReadFull(conn, answer)
	}
	switch {
	case err != nil:
		return explain(err)
	case string(answer) != changesHead:
		return ErrProtocol
	}
	for part := answer[:16]; ; {
		if err := conn.SetReadDeadline(after(deadAfter)); err != nil {
			return explain(err)
		}
		n, err := conn.Read(part)
		if bytes.IndexByte(part[:n], changed) >= 0 {
			onChange()
			pause(ctx, changesEvery)
		}
		if err != nil {
			return explain(err)
		}
	}
}
