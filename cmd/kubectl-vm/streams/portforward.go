// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Forward is a local port and the port of a VM to which it is forwarded.
type Forward struct{ Local, Remote uint16 }

// ParseForward parses LOCAL:REMOTE, :REMOTE for any free local port, or one number for both ports.
func ParseForward(text string) (Forward, error) {
	local, remote, hasBoth := strings.Cut(text, ":")
	if !hasBoth {
		remote = local
	}
	if hasBoth && local == "" {
		local = "0"
	}
	l, err := strconv.ParseUint(local, 10, 16)
	r, remoteErr := strconv.ParseUint(remote, 10, 16)
	if err != nil || remoteErr != nil || r == 0 || (!hasBoth && l == 0) {
		return Forward{}, fmt.Errorf("port %q: it must be REMOTE, LOCAL:REMOTE, or :REMOTE for any free local port; a port is 1 to 65535", text)
	}
	return Forward{Local: uint16(l), Remote: uint16(r)}, nil
}

// PortForwarder forwards local ports to a VM.
type PortForwarder struct {
	Client          *Client
	Namespace, Name string
	// Address is the local address to listen on.
	Address string
	// Notes receives messages about connections, one line each.
	Notes io.Writer
}

// Run opens the local ports and serves them until ctx ends. It fails if one of them cannot be opened.
func (f *PortForwarder) Run(ctx context.Context, forwards []Forward) error {
	listeners, err := f.openListeners(ctx, forwards)
	defer func() {
		for _, l := range listeners {
			_ = l.Close()
		}
	}()
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for i, l := range listeners {
		f.printNote("Forwarding %s -> %d", l.Addr(), forwards[i].Remote)
		context.AfterFunc(ctx, func() { _ = l.Close() })
		all.Go(func() { f.serveConnections(ctx, l, forwards[i].Remote) })
	}
	all.Wait()
	return nil
}

func (f *PortForwarder) openListeners(ctx context.Context, forwards []Forward) ([]net.Listener, error) {
	var all []net.Listener
	var config net.ListenConfig
	for _, forward := range forwards {
		l, err := config.Listen(ctx, "tcp", net.JoinHostPort(f.Address, strconv.Itoa(int(forward.Local))))
		if err != nil {
			return all, err
		}
		all = append(all, l)
	}
	return all, nil
}

// serveConnections serves connections until the listener is closed, and then waits for open connections.
func (f *PortForwarder) serveConnections(ctx context.Context, l net.Listener, remote uint16) {
	var all sync.WaitGroup
	defer all.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		all.Go(func() {
			if err := f.Connect(ctx, remote, conn); err != nil && ctx.Err() == nil {
				f.printNote("A connection to port %d failed: %v", remote, Cause(err))
			}
		})
	}
}

// Connect copies between conn and a TCP port of the VM until one of them ends, and closes
// conn.
func (f *PortForwarder) Connect(ctx context.Context, remote uint16, conn io.ReadWriteCloser) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := sync.OnceFunc(func() { _ = conn.Close() })
	context.AfterFunc(ctx, end)
	defer end()
	err := f.Client.ConnectPort(ctx, f.Namespace, f.Name, remote, localConn{conn, cancel})
	if errors.Is(err, context.Canceled) {
		err = context.Cause(ctx)
	}
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// localConn is a local connection. Its error, such as a reset by the client, cancels the connection to the VM.
// Otherwise the VM would only see the end of one direction.
type localConn struct {
	io.ReadWriter
	fail context.CancelCauseFunc
}

// Read implements io.Reader.
func (l localConn) Read(p []byte) (int, error) {
	n, err := l.ReadWriter.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		l.fail(err)
	}
	return n, err
}

// Write implements io.Writer.
func (l localConn) Write(p []byte) (int, error) {
	n, err := l.ReadWriter.Write(p)
	if err != nil {
		l.fail(err)
	}
	return n, err
}

func (f *PortForwarder) printNote(format string, args ...any) {
	_, _ = fmt.Fprintln(f.Notes, printable.Line(fmt.Sprintf(format, args...)))
}
