// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest simulates what runs in the servers of the fake driver: a console that repeats
// what is typed, a log, a few commands, ports that repeat what they receive, and a network
// interface. It is for trying Drover out and for tests of users of streams.
//
// Start with Access, whose exported methods are optional interfaces of the driver contract.
// What a server prints is in the memory of the process.
package guest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/report"
)

// Server has the facts that a guest knows of its server.
type Server struct {
	UID           types.UID
	ID, Name, Run string
	State         driver.State
	Ports         []int32
	Interface     report.Interface
}

// Access reaches into the guests of one cluster.
type Access struct {
	Clock clock.Clock
	// Find returns the server of a UID. It returns the errors of the contract.
	Find func(ctx context.Context, uid types.UID) (Server, error)
}

var (
	_ driver.Consoler        = (*Access)(nil)
	_ driver.LogReader       = (*Access)(nil)
	_ driver.Executor        = (*Access)(nil)
	_ driver.Dialer          = (*Access)(nil)
	_ driver.InterfaceLister = (*Access)(nil)
)

func (a *Access) findRunning(ctx context.Context, uid types.UID) (Server, error) {
	s, err := a.Find(ctx, uid)
	if err == nil && s.State != driver.StateRunning && s.State != driver.StateStarting && s.State != driver.StateStopping {
		err = driver.Errorf(driver.ErrRetry, "the server does not run: it is %s", s.State)
	}
	return s, err
}

// goesOn reports whether a run goes on. If that cannot be known, it does.
func (a *Access) goesOn(ctx context.Context, before Server) bool {
	now, err := a.Find(ctx, before.UID)
	if err != nil {
		return !errors.Is(err, driver.ErrNotFound)
	}
	return now.Run == before.Run && now.State != driver.StateStopped
}

// Forget drops what a server printed.
func Forget(id string) { screens.Delete(id) }

// Console implements driver.Consoler.
func (a *Access) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	s, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return a.newConsole(ctx, s, screenOf(s).end()-tailSize), nil
}

// Logs implements driver.LogReader.
func (a *Access) Logs(ctx context.Context, uid types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	s, err := a.Find(ctx, uid)
	if err == nil {
		err = o.Check()
	}
	switch {
	case err != nil:
		return nil, err
	case s.Run == "":
		return nil, driver.Errorf(driver.ErrRetry, "the server has not run yet, and has no log")
	}
	t := screenOf(s)
	end, text := t.end(), t.read(0)
	if o.Previous {
		text = t.before
		if text == nil {
			return nil, driver.Errorf(driver.ErrRetry, "no previous run is known to this process")
		}
	}
	if o.TailLines != nil {
		lines := slices.Collect(bytes.Lines(text))
		text = bytes.Join(lines[max(0, int64(len(lines))-*o.TailLines):], nil)
	}
	if o.Follow && !o.Previous {
		return a.newConsole(ctx, s, end-len(text)), nil
	}
	return io.NopCloser(bytes.NewReader(text)), nil
}

// Dial implements driver.Dialer.
func (a *Access) Dial(ctx context.Context, uid types.UID, port int32) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, driver.Errorf(driver.ErrInvalid, "port is %d: it must be 1 to 65535", port)
	}
	s, err := a.findRunning(ctx, uid)
	switch {
	case err != nil:
		return nil, err
	case !slices.Contains(s.Ports, port):
		return nil, driver.Errorf(driver.ErrRetry, "port %d of the server takes no connection: those of spec.ports do", port)
	}
	ours, theirs := net.Pipe()
	go func() {
		_, _ = io.Copy(theirs, theirs)
		_ = theirs.Close()
	}()
	return connection{ours, theirs}, nil
}

// connection is a connection to a simulated port. A client that leaves a port-forward closes its half alone, so
// without CloseWrite the server's would stay for ever.
type connection struct {
	net.Conn
	server net.Conn
}

// CloseWrite ends the input of the server, which then closes after what it still sends.
func (c connection) CloseWrite() error { return c.server.SetReadDeadline(time.Unix(1, 0)) }

// Interfaces implements driver.InterfaceLister.
func (a *Access) Interfaces(ctx context.Context, uid types.UID) ([]report.Interface, error) {
	s, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return []report.Interface{s.Interface}, nil
}
