// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package imageagent asks Drover's program in the machine of a container image to do what
// control.Guest promises.
//
// Start with Agent.
package imageagent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

// HoldCommand is a command that Drover's program in the guest serves itself: it holds the output of the image's command
// back until its caller leaves.
const HoldCommand = "drover:hold"

// answerWithin is how long the program may take to begin a session. One that boots answers as soon as it can.
const answerWithin = 10 * time.Second

// Agent is the program in one guest.
type Agent struct {
	// take waits for the connection to the guest, and returns it until it is closed. It can be taken again.
	take func(context.Context) (net.Conn, error)
	// nonce is the secret of the run by which the program recognizes its host.
	nonce []byte

	turn    chan struct{} // has a value while a session is looked for
	session atomic.Pointer[client.Client]
}

// EndSession ends the session with a program that no longer runs, since its machine boots again. It does not wait, so
// that it cannot end the session with the next program.
func (a *Agent) EndSession() {
	if session := a.session.Load(); session != nil {
		go func() { _ = session.Close() }()
	}
}

// New returns the agent of a guest to which take leads.
func New(nonce []byte, take func(context.Context) (net.Conn, error)) *Agent {
	return &Agent{take: take, nonce: nonce, turn: make(chan struct{}, 1)}
}

// openSession returns the session, and begins one if there is none.
func (a *Agent) openSession(ctx context.Context) (*client.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, failure.ErrSilent)
	defer cancel()
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	if session := a.session.Load(); session != nil {
		select {
		case <-session.Done():
		default:
			return session, nil
		}
	}
	conn, err := a.take(ctx)
	if err != nil {
		return nil, err
	}
	session, err := client.New(ctx, conn, a.nonce)
	a.session.Store(session)
	return session, err
}

// failures has the error that clients get for a failure of the guest; the first that fits counts.
var failures = []struct{ from, to error }{
	{client.ErrEndUnknown, failure.ErrEndUnknown},
	{client.ErrNotFound, failure.ErrCommandNotFound},
	{client.ErrNotExecutable, failure.ErrCommandNotExecutable},
	{client.ErrBusy, failure.ErrBusy},
	{client.ErrLost, failure.ErrSilent},
	{client.ErrBadAnswer, failure.ErrBadAnswer},
	{client.ErrRefused, failure.ErrCommand},
}

func failureFor(err error) error {
	for _, f := range failures {
		if errors.Is(err, f.from) {
			return f.to
		}
	}
	return err
}

// Exec runs a command beside the image's, as its user and in its folder.
func (a *Agent) Exec(ctx context.Context, c terminal.Command) (exitCode int, err error) {
	session, err := a.openSession(ctx)
	if err != nil {
		return 0, failureFor(err)
	}
	if len(c.Args) == 1 && c.Args[0] == HoldCommand {
		return 0, failureFor(session.HoldOutput(ctx))
	}
	if files.IsCommand(c.Args) {
		return copyFiles(ctx, session, c)
	}
	sizing, endSizing := context.WithCancel(ctx)
	defer endSizing()
	exit, err := session.Exec(ctx, client.Command{
		Exec: wire.Exec{Args: c.Args, TTY: c.TTY}, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Resize: convertSizes(sizing, c.Resize),
	})
	return exit.Code, failureFor(err)
}

// convertSizes returns sizes as the guest takes them, until sizes is closed or ctx ends.
func convertSizes(ctx context.Context, sizes <-chan terminal.Size) <-chan wire.Size {
	converted := make(chan wire.Size)
	go func() {
		for {
			var size terminal.Size
			isOpen := false
			select {
			case size, isOpen = <-sizes:
			case <-ctx.Done():
			}
			if !isOpen {
				return
			}
			select {
			case converted <- wire.Size{Rows: size.Height, Columns: size.Width}:
			case <-ctx.Done():
				return
			}
		}
	}()
	return converted
}

// copyFiles runs a command that Drover's program in the guest serves itself.
func copyFiles(ctx context.Context, session *client.Client, c terminal.Command) (exitCode int, err error) {
	switch {
	case len(c.Args) != 2:
		err = fmt.Errorf("%w: %s needs one path, and has %d", client.ErrRefused, c.Args[0], len(c.Args)-1)
	case c.Args[0] == files.ReadCommand:
		err = session.ReadFiles(ctx, c.Args[1], c.Stdout)
	default:
		err = session.WriteFiles(ctx, c.Args[1], c.Stdin, c.Stderr)
	}
	if errors.Is(err, client.ErrRefused) {
		_, err = fmt.Fprintln(c.Stderr, err)
		return 1, err
	}
	return 0, failureFor(err)
}

// Interfaces returns the guest's network interfaces.
func (a *Agent) Interfaces(ctx context.Context) ([]report.Interface, error) {
	session, err := a.openSession(ctx)
	if err != nil {
		return nil, failureFor(err)
	}
	found, err := session.Interfaces(ctx)
	return found, failureFor(err)
}

// SetTime sets the guest's clock.
func (a *Agent) SetTime(ctx context.Context, now time.Time) error {
	session, err := a.openSession(ctx)
	if err != nil {
		return failureFor(err)
	}
	return failureFor(session.SetTime(ctx, now))
}
