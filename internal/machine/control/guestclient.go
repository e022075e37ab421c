// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/gorilla/websocket"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

var _ Guest = (*Client)(nil)

// Interfaces implements Guest.
func (c *Client) Interfaces(ctx context.Context) (all []report.Interface, err error) {
	if err = c.makeCall(ctx, http.MethodGet, interfacesPath, nil, &all); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(all, func(i report.Interface) bool { return !i.IsValid() }) {
		return nil, failure.ErrProtocol
	}
	return all, nil
}

// NetworkStatistics implements Guest.
func (c *Client) NetworkStatistics(ctx context.Context) (n report.NetworkStatistics, err error) {
	if err = c.makeCall(ctx, http.MethodGet, networkPath, nil, &n); err != nil {
		return report.NetworkStatistics{}, err
	}
	if !n.IsValid() {
		return report.NetworkStatistics{}, failure.ErrProtocol
	}
	return n, nil
}

// Console implements Guest.
func (c *Client) Console(ctx context.Context, canWrite bool) (io.ReadWriteCloser, error) {
	path := consolePath
	if canWrite {
		path += "?type"
	}
	s, err := c.openStream(ctx, path)
	if err != nil {
		return nil, err
	}
	return &console{stream: s}, nil
}

// openStream opens a stream, which ends when ctx does.
func (c *Client) openStream(ctx context.Context, path string) (*stream, error) {
	ws, err := c.openWebSocket(ctx, path)
	if err != nil {
		return nil, err
	}
	return newStream(ctx, ws, maxOutput), nil
}

func (c *Client) openWebSocket(ctx context.Context, path string) (*websocket.Conn, error) {
	dialer, bounded := c.dialer, &boundedConn{}
	dialer.NetDialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := c.dialer.NetDialContext(ctx, network, address)
		bounded.Conn = conn
		bounded.readable.Store(maxHandshake)
		return bounded, err
	}
	ws, response, err := dialer.DialContext(ctx, "ws"+strings.TrimPrefix(c.base, "http")+path, c.header)
	if err != nil && response != nil {
		defer func() { _ = response.Body.Close() }()
		return nil, cmp.Or(readAnswer(response, nil), failure.ErrProtocol)
	}
	if err != nil {
		return nil, explainError(err)
	}
	bounded.readable.Store(math.MaxInt64)
	return ws, nil
}

// maxHandshake limits the bytes that a machine sends before a stream, including its certificates.
const maxHandshake = 64 << 10

// boundedConn is a connection from which a limited number of bytes can be read. Without a limit the
// WebSocket library would keep headers of any length from a hostile machine.
type boundedConn struct {
	net.Conn

	readable atomic.Int64
}

// Read implements net.Conn. It fails with failure.ErrProtocol at the limit.
func (c *boundedConn) Read(p []byte) (int, error) {
	if c.readable.Load() <= 0 {
		return 0, failure.ErrProtocol
	}
	n, err := c.Conn.Read(p)
	c.readable.Add(-int64(n))
	return n, err
}

// console is an attached console.
type console struct {
	*stream

	unread []byte
	err    error
}

// Read implements io.Reader. It returns io.EOF once the machine has ended.
func (c *console) Read(p []byte) (int, error) {
	for len(c.unread) == 0 {
		if c.err != nil {
			return 0, c.err
		}
		c.unread, c.err = c.nextOutput()
	}
	n := copy(p, c.unread)
	c.unread = c.unread[n:]
	return n, nil
}

// nextOutput waits for the next output.
func (c *console) nextOutput() ([]byte, error) {
	channel, content, err := c.Receive()
	switch {
	case err != nil:
		return nil, err
	case channel == terminal.Output:
		return content, nil
	case channel == terminal.Control.End:
		_, err := readOutcome(content)
		err = cmp.Or(err, io.EOF)
		c.end(err) // the machine waits until the connection is closed
		return nil, err
	}
	return nil, failure.ErrProtocol
}

// Write implements io.Writer. It blocks while the guest does not read.
func (c *console) Write(p []byte) (int, error) { return c.Writer(terminal.Input).Write(p) }

// CloseWrite makes the machine end the session, so that another caller can write.
func (c *console) CloseWrite() error { return c.Send(terminal.Input, nil) }

// Close implements io.Closer.
func (c *console) Close() error {
	c.end(os.ErrClosed)
	return nil
}

// TakesInput implements Guest. A machine that does not take input reports that itself.
func (c *Client) TakesInput() bool { return true }

// sendSizes sends each new size of the terminal until sizes is closed or the stream ends.
func (s *stream) sendSizes(sizes <-chan terminal.Size) {
	for {
		select {
		case <-s.ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok || s.SendJSON(terminal.Control.Resize, size) != nil {
				return
			}
		}
	}
}

// Exec implements Guest.
func (c *Client) Exec(ctx context.Context, command terminal.Command) (exitCode int, err error) {
	s, err := c.openStream(ctx, execPath)
	if err != nil {
		return 0, err
	}
	defer s.end(os.ErrClosed)
	message := commandMessage{command.Args, command.Env, command.User, command.WorkingDir, command.TTY, command.Stdin == nil}
	if err := s.SendJSON(terminal.Control.Start, message); err != nil {
		return 0, err
	}
	go s.sendSizes(command.Resize)
	if command.Stdin != nil {
		go s.sendInput(command.Stdin)
	} else if err := s.Send(terminal.Input, nil); err != nil { // a machine of an earlier version does not know NoStdin
		return 0, err
	}
	for {
		channel, content, err := s.Receive()
		switch {
		case err != nil && ctx.Err() == nil && !errors.Is(err, errInput):
			// Do not wrap err: its kind could mean that the command may be tried again.
			return 0, fmt.Errorf("%w: %s", failure.ErrEndUnknown, err.Error())
		case err != nil:
			return 0, err
		case channel == terminal.Control.End:
			return readOutcome(content)
		}
		writer := map[byte]io.Writer{terminal.Output: command.Stdout, terminal.Errors: command.Stderr}[channel]
		if writer == nil {
			return 0, fmt.Errorf("%w: %s", failure.ErrEndUnknown, failure.ErrProtocol.Error())
		}
		if _, err := writer.Write(content); err != nil {
			return 0, err
		}
	}
}
