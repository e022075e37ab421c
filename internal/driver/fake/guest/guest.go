// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest simulates the guests of the fake driver's servers: a console and ports that echo
// their input, a log, a few commands, and a network interface. It is for trying Drover out and for
// tests of programs that use consoles, logs and commands.
//
// Start with Access, whose exported methods are optional interfaces of the driver contract.
// The output of servers is kept in the memory of the process.
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
	MountPaths    []string
	Interface     report.Interface
}

// Access connects callers to the guests of one cluster.
type Access struct {
	Clock clock.Clock
	// Find returns the server of a UID, or the errors that package driver specifies.
	Find func(ctx context.Context, uid types.UID) (Server, error)
}

var (
	_ driver.Consoler        = (*Access)(nil)
	_ driver.LogReader       = (*Access)(nil)
	_ driver.Executor        = (*Access)(nil)
	_ driver.Dialer          = (*Access)(nil)
	_ driver.InterfaceLister = (*Access)(nil)
	_ driver.FileWriter      = (*Access)(nil)
)

// FileRevisions implements driver.FileWriter. The folders of a simulated server are empty.
func (a *Access) FileRevisions(ctx context.Context, uid types.UID) (map[string]string, error) {
	s, err := a.findRunning(ctx, uid)
	revisions := map[string]string{}
	for _, path := range s.MountPaths {
		revisions[path] = ""
	}
	return revisions, err
}

// WriteFiles implements driver.FileWriter. It accepts all files.
func (a *Access) WriteFiles(ctx context.Context, uid types.UID, _ driver.FileMount) error {
	_, err := a.findRunning(ctx, uid)
	return err
}

func (a *Access) findRunning(ctx context.Context, uid types.UID) (Server, error) {
	s, err := a.Find(ctx, uid)
	if err == nil && s.State != driver.StateRunning && s.State != driver.StateStarting && s.State != driver.StateStopping {
		err = driver.Errorf(driver.ErrRetry, "the server does not run: it is %s", s.State)
	}
	return s, err
}

// isRunActive reports whether a run goes on. It returns true if the server cannot be read.
func (a *Access) isRunActive(ctx context.Context, earlier Server) bool {
	now, err := a.Find(ctx, earlier.UID)
	if err != nil {
		return !errors.Is(err, driver.ErrNotFound)
	}
	return now.Run == earlier.Run && now.State != driver.StateStopped
}

// ForgetOutput drops the output of a server.
func ForgetOutput(id string) { screens.Delete(id) }

// Console implements driver.Consoler.
func (a *Access) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	s, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return a.newConsole(ctx, s, screenOf(s).endOffset()-tailSize), nil
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
	screen := screenOf(s)
	end, text := screen.endOffset(), screen.readFrom(0)
	if o.Previous {
		text = screen.previousRun
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
		return nil, driver.Errorf(driver.ErrRetry, "port %d of the server takes no connection: only the ports in spec.ports do", port)
	}
	client, server := net.Pipe()
	go func() {
		_, _ = io.Copy(server, server)
		_ = server.Close()
	}()
	return connection{client, server}, nil
}

// connection is a connection to a simulated port. A client that ends a port-forward closes only one direction. Without
// CloseWrite the server's goroutine would wait forever.
type connection struct {
	net.Conn
	server net.Conn
}

// CloseWrite ends the server's input. The server then sends the rest and closes the connection.
func (c connection) CloseWrite() error { return c.server.SetReadDeadline(time.Unix(1, 0)) }

// Interfaces implements driver.InterfaceLister.
func (a *Access) Interfaces(ctx context.Context, uid types.UID) ([]report.Interface, error) {
	s, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	return []report.Interface{s.Interface}, nil
}
