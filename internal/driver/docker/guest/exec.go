// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/terminal"
)

// execution is a command in a container.
type execution struct {
	access  *Access
	of      found
	request terminal.Command
	id      string // by the engine
	mark    string // in the environment of the command and of its children

	started, refused bool
	refusal          bytes.Buffer // what the engine sent in place of output
}

// Exec implements driver.Executor. The engine cannot end a command: if ctx ends first, a
// shell in the container ends it, and all that it started, by a variable in their
// environment (endCommand). In a container without a shell they go on.
func (a *Access) Exec(ctx context.Context, uid types.UID, r terminal.Command) (exitCode int, err error) {
	if len(r.Args) == 0 {
		return 0, driver.Errorf(driver.ErrInvalid, "command is empty: it must be a program and its arguments")
	}
	of, err := a.findRunning(ctx, uid)
	if err != nil {
		return 0, err
	}
	x := &execution{access: a, of: of, request: r, mark: "DROVER_EXEC=" + string(uuid.NewUUID())}
	if err := x.createExec(ctx); err != nil {
		return 0, err
	}
	conn, err := x.startExec(ctx)
	if err != nil {
		return 0, err
	}
	return x.runCommand(ctx, conn)
}

func (x *execution) createExec(ctx context.Context) error {
	id, err := x.access.createExec(ctx, x.of.ID, client.ExecCreateOptions{
		Cmd: x.request.Args, Env: []string{x.mark}, TTY: x.request.TTY, DetachKeys: noDetachKeys,
		AttachStdin: x.request.Stdin != nil, AttachStdout: true, AttachStderr: true,
	})
	x.id = id
	return err
}

func (a *Access) createExec(ctx context.Context, container string, o client.ExecCreateOptions) (id string, err error) {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	err = a.options.Engine.Read(ctx, "prepare a command in container "+engine.ShortID(container), func(ctx context.Context, e *client.Client) error {
		res, err := e.ExecCreate(ctx, container, o)
		id = res.ID
		return err
	})
	switch {
	case errdefs.IsNotFound(err), errdefs.IsConflict(err): // it was removed, stopped or paused
		err = driver.Errorf(driver.ErrRetry, "%w", err)
	case errdefs.IsInvalidArgument(err):
		err = driver.Errorf(driver.ErrInvalid, "%w", err)
	}
	return id, err
}

// startExec starts the command and returns the connection to it. Its refusal, if the engine
// refuses to start it, comes as output.
func (x *execution) startExec(ctx context.Context) (conn client.HijackedResponse, err error) {
	ctx, cancel := x.access.withTimeout(ctx)
	defer cancel()
	err = x.access.options.Engine.Change(ctx, "start a command in container "+engine.ShortID(x.of.ID), func(ctx context.Context, e *client.Client) error {
		res, err := e.ExecAttach(ctx, x.id, client.ExecAttachOptions{TTY: x.request.TTY})
		conn = res.HijackedResponse
		return err
	})
	return conn, err
}

// runCommand is connected to a command until it has ended.
func (x *execution) runCommand(ctx context.Context, conn client.HijackedResponse) (exitCode int, err error) {
	running, end := context.WithCancel(ctx)
	var sizes sync.WaitGroup
	sizes.Go(func() { x.followSize(running) })
	defer sizes.Wait()
	defer end()
	defer conn.Close()
	defer context.AfterFunc(running, conn.Close)()
	if x.request.Stdin != nil {
		go x.sendInput(conn)
	}
	err = x.receiveOutput(running, conn.Reader)
	if err == nil {
		exitCode, err = x.awaitEnd(running)
	}
	if err == nil {
		return exitCode, nil
	}
	if !x.refused {
		x.endCommand(ctx)
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return 0, err
}

// endOfTransmission is Ctrl-D.
var endOfTransmission = []byte{4}

// sendInput sends the input, and its end. It stays with a Read of the caller's that does not
// return. A terminal is not closed, because the engine would close the output too: its end of
// input is a key, which counts at the beginning of a line and ends an unfinished one.
func (x *execution) sendInput(conn client.HijackedResponse) {
	if !x.request.TTY {
		_, _ = io.Copy(conn.Conn, x.request.Stdin) // an error ends the output as well
		_ = conn.CloseWrite()
		return
	}
	last := lastByte('\n')
	if _, err := io.Copy(io.MultiWriter(conn.Conn, &last), x.request.Stdin); err != nil {
		return
	}
	if last != '\n' && last != '\r' {
		_, _ = conn.Conn.Write(endOfTransmission)
	}
	_, _ = conn.Conn.Write(endOfTransmission)
}

// lastByte is the last byte that was written to it.
type lastByte byte

// Write implements io.Writer.
func (b *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		*b = lastByte(p[len(p)-1])
	}
	return len(p), nil
}

// followSize sends the sizes of the terminal to the engine, which waits for the command to
// start. An error means that it has ended.
func (x *execution) followSize(ctx context.Context) {
	for {
		select {
		case size, open := <-x.request.Resize:
			if !open {
				return
			}
			if size.Width > 0 && size.Height > 0 {
				x.resizeTerminal(ctx, size)
			}
		case <-ctx.Done():
			return
		}
	}
}

func (x *execution) resizeTerminal(ctx context.Context, size terminal.Size) {
	ctx, cancel := x.access.withTimeout(ctx)
	defer cancel()
	_ = x.access.options.Engine.Read(ctx, "resize a terminal", func(ctx context.Context, e *client.Client) error {
		_, err := e.ExecResize(ctx, x.id, client.ExecResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
}

// receiveOutput copies the output until the command closes it.
func (x *execution) receiveOutput(ctx context.Context, reader io.Reader) error {
	stdout, stderr := x.gateOutput(ctx, x.request.Stdout), x.gateOutput(ctx, x.request.Stderr)
	var err error
	if x.request.TTY {
		_, err = io.Copy(stdout, reader)
	} else {
		_, err = stdcopy.StdCopy(stdout, stderr, reader)
	}
	if failed, ok := errors.AsType[receiverError](err); ok {
		return failed.error
	}
	if err != nil {
		return driver.Errorf(driver.ErrUnavailable, "the connection to the command in container %s is lost: %w", engine.ShortID(x.of.ID), err)
	}
	return nil
}

// gateOutput returns a writer that passes output on once it is known to be the command's.
func (x *execution) gateOutput(ctx context.Context, writer io.Writer) io.Writer {
	if writer == nil {
		writer = io.Discard
	}
	return writerFunc(func(p []byte) (int, error) {
		if err := x.awaitStart(ctx); err != nil {
			return 0, receiverError{err}
		}
		if x.refused {
			return x.refusal.Write(p)
		}
		n, err := writer.Write(p)
		if err != nil {
			err = receiverError{err}
		}
		return n, err
	})
}

type writerFunc func(p []byte) (int, error)

// Write implements io.Writer.
func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// receiverError is an error that is not the connection's.
type receiverError struct{ error }

const (
	stateEvery = 10 * time.Millisecond
	// codeWithin is how long the engine may take from the end of the output to the exit code.
	codeWithin = 10 * time.Second
)

// awaitStart waits until the command has a process id, or has ended. One that ends without
// has never started.
func (x *execution) awaitStart(ctx context.Context) error {
	if x.started || x.refused {
		return nil
	}
	state, err := x.awaitState(ctx, func(r client.ExecInspectResult) bool { return r.PID != 0 || !r.Running })
	x.started = err == nil && state.PID != 0
	x.refused = err == nil && state.PID == 0
	return err
}

func (x *execution) awaitState(ctx context.Context, reached func(client.ExecInspectResult) bool) (state client.ExecInspectResult, err error) {
	for {
		state, err = x.inspectExec(ctx)
		if err != nil || reached(state) {
			return state, err
		}
		if err := kit.Pause(ctx, x.access.options.Clock, stateEvery); err != nil {
			return state, err
		}
	}
}

func (x *execution) inspectExec(ctx context.Context) (state client.ExecInspectResult, err error) {
	ctx, cancel := x.access.withTimeout(ctx)
	defer cancel()
	err = x.access.options.Engine.Read(ctx, "inspect a command in container "+engine.ShortID(x.of.ID), func(ctx context.Context, e *client.Client) (err error) {
		state, err = e.ExecInspect(ctx, x.id, client.ExecInspectOptions{})
		return err
	})
	return state, err
}

// awaitEnd returns the exit code of a command whose output has ended.
func (x *execution) awaitEnd(ctx context.Context) (exitCode int, err error) {
	limited, cancel := context.WithTimeout(ctx, codeWithin)
	defer cancel()
	state, err := x.awaitState(limited, func(r client.ExecInspectResult) bool { return !r.Running })
	switch {
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		return 0, driver.Errorf(driver.ErrUnavailable, "the connection to the command in container %s has ended before the command", engine.ShortID(x.of.ID))
	case err != nil:
		return 0, err
	case state.PID == 0:
		x.refused = true
		return 0, x.explainRefusal()
	}
	return state.ExitCode, nil
}

func (x *execution) explainRefusal() error {
	text := cmp.Or(strings.TrimSpace(x.refusal.String()), "the engine gives no reason")
	kind := cmp.Or(driver.CommandError(text), driver.ErrRetry)
	return driver.Errorf(kind, "command %q cannot be started in container %s: %.500s", x.request.Args[0], engine.ShortID(x.of.ID), text)
}

// endScript ends every process whose environment has the text of its argument: first with the
// signal of a terminal that was closed, then by force. It needs nothing but a shell.
const endScript = `
end() {
	for p in /proc/[0-9]*; do
		while IFS= read -r line || [ -n "$line" ]; do
			case $line in *"$mark"*) kill "-$1" "${p#/proc/}"; break ;; esac
		done <"$p/environ"
	done
}
mark=$1
exec 2>/dev/null
end HUP
sleep 2
end KILL`

// endWait is how long Exec stays, after its context has ended, to have the command ended.
const endWait = 5 * time.Second

// endCommand has the command ended. It is best effort: the container may lack a shell.
func (x *execution) endCommand(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	id, err := x.access.createExec(ctx, x.of.ID, client.ExecCreateOptions{Cmd: []string{"sh", "-c", endScript, "sh", x.mark}})
	if err == nil {
		err = x.access.options.Engine.Change(ctx, "end a command in container "+engine.ShortID(x.of.ID), func(ctx context.Context, e *client.Client) error {
			_, err := e.ExecStart(ctx, id, client.ExecStartOptions{Detach: true})
			return err
		})
	}
	x.access.options.Log.V(1).Info("Ended a command whose caller has left", "container", engine.ShortID(x.of.ID), "err", err)
}
