// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package imageagent implements the services of control.Guest for container images, by calls to
// Drover's agent in the guest (package guest/agent).
//
// Start with Agent.
package imageagent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/terminal"
)

// HoldCommand is a pseudo command that the agent in the guest serves itself: it holds back the output of the image's
// command until the caller leaves.
const HoldCommand = "drover:hold"

// InputCommand is a pseudo command whose input and sizes go to the image's command. It outputs a byte once it takes input.
const InputCommand = "drover:input"

// answerWithin is how long the agent may take to begin a session. A booting guest answers as soon as its agent runs.
const answerWithin = 10 * time.Second

// askAgain is the pause between two tries to begin a session for input.
const askAgain = time.Second / 4

// Agent is the agent in one guest.
type Agent struct {
	// connect waits until no other caller uses the connection to the guest, and returns it. Closing the connection frees
	// it for the next caller.
	connect func(context.Context) (net.Conn, error)
	// nonce is a secret by which the agent recognizes the host. Each run of the machine has another one.
	nonce []byte

	opening chan struct{} // a semaphore: one caller at a time opens a session
	session atomic.Pointer[client.Client]
}

// EndSession ends the session after the machine was reset, since the agent of the session no longer runs. It does not wait
// until the session has ended, since that could delay a session with the next agent.
func (a *Agent) EndSession() {
	if session := a.session.Load(); session != nil {
		go func() { _ = session.Close() }()
	}
}

// New returns the agent of the guest to which connect connects.
func New(nonce []byte, connect func(context.Context) (net.Conn, error)) *Agent {
	return &Agent{connect: connect, nonce: nonce, opening: make(chan struct{}, 1)}
}

// openSession returns the open session, or begins one.
func (a *Agent) openSession(ctx context.Context) (*client.Client, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerWithin, failure.ErrSilent)
	defer cancel()
	select {
	case a.opening <- struct{}{}:
		defer func() { <-a.opening }()
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
	conn, err := a.connect(ctx)
	if err != nil {
		return nil, err
	}
	session, err := client.New(ctx, conn, a.nonce)
	a.session.Store(session)
	return session, err
}

// AwaitAgent returns once the agent answers. It fails if the agent does not answer in time, for example while the guest
// boots.
func (a *Agent) AwaitAgent(ctx context.Context) error {
	_, err := a.openSession(ctx)
	return toFailure(err)
}

// failures maps errors of the session to errors for clients. The first match counts.
var failures = []struct{ from, to error }{
	{client.ErrEndUnknown, failure.ErrEndUnknown},
	{client.ErrNotFound, failure.ErrCommandNotFound},
	{client.ErrNotExecutable, failure.ErrCommandNotExecutable},
	{client.ErrTaken, failure.ErrTaken},
	{client.ErrEnded, failure.ErrInputEnded},
	{client.ErrBusy, failure.ErrTooManyStreams},
	{client.ErrLost, failure.ErrSilent},
	{client.ErrBadAnswer, failure.ErrBadAnswer},
	{client.ErrRefused, failure.ErrCommand},
}

func toFailure(err error) error {
	if missing, ok := errors.AsType[*client.MissingVerbError](err); ok {
		return failure.MissingVerb(missing.Verb)
	}
	for _, f := range failures {
		if errors.Is(err, f.from) {
			return f.to
		}
	}
	return err
}

// Exec runs a command beside the image's command. Unless c sets them, the command has the user, the
// folder and the environment of the image's command.
func (a *Agent) Exec(ctx context.Context, c terminal.Command) (exitCode int, err error) {
	isInput := len(c.Args) == 1 && c.Args[0] == InputCommand
	session, err := a.openSession(ctx)
	for isInput && err != nil && ctx.Err() == nil { // the guest boots, and its command will have the input
		proc.Pause(ctx, askAgain)
		session, err = a.openSession(ctx)
	}
	if err != nil {
		return 0, toFailure(err)
	}
	if len(c.Args) == 1 && c.Args[0] == HoldCommand {
		return 0, toFailure(session.HoldOutput(ctx))
	}
	switch {
	case files.IsCommand(c.Args):
		return copyFiles(ctx, session, c)
	case len(c.Args) == 1 && c.Args[0] == mounts.Command:
		return serveMounts(ctx, session, c)
	}
	resizeCtx, endResize := context.WithCancel(ctx)
	defer endResize()
	exec := wire.Exec{Args: c.Args, Env: c.Env, WorkingDir: c.WorkingDir, TTY: c.TTY}
	if c.User != "" {
		exec.User = &c.User
	}
	command := client.Command{Exec: exec, Stdin: c.Stdin, Stdout: c.Stdout, Stderr: c.Stderr, Resize: convertSizes(resizeCtx, c.Resize)}
	if isInput {
		return 0, toFailure(session.SendInput(ctx, command))
	}
	exit, err := session.Exec(ctx, command)
	if errors.Is(err, client.ErrRefused) {
		_, _ = fmt.Fprintln(c.Stderr, err) // toFailure drops the guest's message
	}
	return exit.Code, toFailure(err)
}

// convertSizes converts sizes to the guest's type until sizes is closed or ctx ends.
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

// copyFiles runs a pseudo command that copies files from or to the guest. The agent serves it itself.
func copyFiles(ctx context.Context, session *client.Client, c terminal.Command) (exitCode int, err error) {
	switch {
	case len(c.Args) != 2:
		err = fmt.Errorf("%w: %s needs exactly one path, and got %d arguments", client.ErrRefused, c.Args[0], len(c.Args)-1)
	case c.Args[0] != files.ReadCommand && c.Stdin == nil:
		err = fmt.Errorf("%w: %s needs an input", client.ErrRefused, c.Args[0])
	case c.Args[0] == files.ReadCommand:
		err = session.ReadFiles(ctx, c.Args[1], c.Stdout)
	default:
		err = session.WriteFiles(ctx, c.Args[1], c.Stdin, c.Stderr)
	}
	return explainRefusal(c, err)
}

// serveMounts runs mounts.Command.
func serveMounts(ctx context.Context, session *client.Client, c terminal.Command) (exitCode int, err error) {
	if c.Stdin != nil {
		err = session.WriteMount(ctx, c.Stdin)
	} else {
		var revisions map[string]string
		if revisions, err = session.Mounted(ctx); err == nil {
			err = json.NewEncoder(c.Stdout).Encode(revisions)
		}
	}
	return explainRefusal(c, err)
}

// explainRefusal prints why the guest refuses a pseudo command, since toFailure drops the guest's message.
func explainRefusal(c terminal.Command, err error) (exitCode int, _ error) {
	if errors.Is(err, client.ErrRefused) {
		_, err = fmt.Fprintln(c.Stderr, err)
		return 1, err
	}
	return 0, toFailure(err)
}

// Interfaces returns the guest's network interfaces.
func (a *Agent) Interfaces(ctx context.Context) ([]report.Interface, error) {
	session, err := a.openSession(ctx)
	if err != nil {
		return nil, toFailure(err)
	}
	found, err := session.Interfaces(ctx)
	return found, toFailure(err)
}

// SetTime sets the guest's clock.
func (a *Agent) SetTime(ctx context.Context, now time.Time) error {
	session, err := a.openSession(ctx)
	if err != nil {
		return toFailure(err)
	}
	return toFailure(session.SetTime(ctx, now))
}
