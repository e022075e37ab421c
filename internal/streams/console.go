// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
)

// serveConsole joins the client with the console until the server stops.
func (c *call) serveConsole() error {
	consoler, err := offered[driver.Consoler](c)
	if err != nil {
		return err
	}
	return c.serveJoined(func() (io.ReadWriteCloser, error) {
		console, err := within(c, func() (io.ReadWriteCloser, error) { return consoler.Console(c.ctx, c.vm.UID) })
		return &heldConsole{ReadWriteCloser: console, call: c}, err
	}, errStopped)
}

// serveJoined opens a connection, then the WebSocket, and joins the two. atEOF is the end if
// the connection has no more to read.
func (c *call) serveJoined(open func() (io.ReadWriteCloser, error), atEOF error) error {
	if err := c.checkHandshake(); err != nil {
		return err
	}
	conn, err := open()
	if err != nil {
		return err
	}
	closed := sync.OnceFunc(func() { _ = conn.Close() })
	context.AfterFunc(c.ctx, closed)
	defer closed()
	return c.overWebSocket(func(s *session) error { return s.join(conn, atEOF) })
}

// holders are the users who write to consoles here.
type holders struct {
	mu    sync.Mutex
	first map[types.UID]holder
}

type holder struct {
	console *heldConsole
	since   time.Time
}

// heldConsole is a console that records who writes to it.
type heldConsole struct {
	io.ReadWriteCloser
	call   *call
	closed bool // guarded by holders.mu
}

// Write implements io.Writer.
func (k *heldConsole) Write(p []byte) (int, error) {
	n, err := k.ReadWriteCloser.Write(p)
	switch {
	case errors.Is(err, driver.ErrConsoleTaken):
		return n, k.call.holders.describe(k.call.vm.UID)
	case n > 0:
		k.call.holders.record(k)
	}
	return n, err
}

// Close implements io.Closer.
func (k *heldConsole) Close() error {
	err := k.ReadWriteCloser.Close()
	k.call.holders.forget(k)
	return err
}

// record is called after each write, which may end after the console was closed.
func (h *holders) record(k *heldConsole) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uid := k.call.vm.UID
	if k.closed || h.first[uid].console == k {
		return
	}
	if h.first == nil {
		h.first = map[types.UID]holder{}
	}
	h.first[uid] = holder{k, k.call.Clock.Now()}
}

func (h *holders) forget(k *heldConsole) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k.closed = true
	if uid := k.call.vm.UID; h.first[uid].console == k {
		delete(h.first, uid)
	}
}

// describe returns an error that says who writes to a console. That is not known if they do
// so through another controller, or on the engine's host.
func (h *holders) describe(uid types.UID) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	who := "another session writes to this console"
	if first, ok := h.first[uid]; ok {
		who = first.console.call.user.GetName() + " has been writing to this console since " + first.since.UTC().Format(time.RFC3339)
	}
	return failure(http.StatusConflict, streams.ReasonConsoleTaken, "%s: it may be read, and written to once that session has ended", who)
}
