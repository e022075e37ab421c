// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"sync"

	"cloudnative.tw/drover/internal/driver"
)

// serveConsole joins the client with the console until the server stops.
func (c *call) serveConsole() error {
	consoler, err := offered[driver.Consoler](c)
	if err != nil {
		return err
	}
	return c.serveJoined(func() (io.ReadWriteCloser, error) {
		return within(c, func() (io.ReadWriteCloser, error) { return consoler.Console(c.ctx, c.vm.UID) })
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
