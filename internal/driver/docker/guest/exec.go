// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
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
	target  inspected
	request terminal.Command
	id      string // the engine's ID of the command
	mark    string // an environment variable of the command, which its child processes inherit

	started, refused bool
	refusal          bytes.Buffer // the engine's message, which it sends as output if it refuses the command
}

// Exec implements driver.Executor. The engine cannot end a command. If ctx ends first, a shell in the
// container kills all processes whose environment has the mark (endCommand). In a container without a
// shell they keep running.
func (a *Access) Exec(ctx context.Context, uid types.UID, r terminal.Command) (exitCode int, err error) {
	if len(r.Args) == 0 {
		return 0, driver.Errorf(driver.ErrInvalid, "command is empty: it must be a program and its arguments")
	}
	target, err := a.findRunning(ctx, uid)
	if err != nil {
		return 0, err
	}
	x := &execution{access: a, target: target, request: r, mark: "DROVER_EXEC=" + string(uuid.NewUUID())}
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
	id, err := x.access.createExec(ctx, x.target.ID, client.ExecCreateOptions{
		Cmd: x.request.Args, Env: append(slices.Clone(x.request.Env), x.mark), User: x.request.User, WorkingDir: x.request.WorkingDir, TTY: x.request.TTY, DetachKeys: noDetachKeys,
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
	case errdefs.IsNotFound(err), errdefs.IsConflict(err): // the container was removed, stopped or paused
		err = driver.Errorf(driver.ErrRetry, "%w", err)
	case errdefs.IsInvalidArgument(err):
		err = driver.Errorf(driver.ErrInvalid, "%w", err)
	}
	return id, err
}

// startExec starts the command and returns the connection to it. If the engine refuses to start the
// command, the connection has the engine's message in place of output.
func (x *execution) startExec(ctx context.Context) (conn client.HijackedResponse, err error) {
	ctx, cancel := x.access.withTimeout(ctx)
	defer cancel()
	err = x.access.options.Engine.Change(ctx, "start a command in container "+engine.ShortID(x.target.ID), func(ctx context.Context, e *client.Client) error {
		res, err := e.ExecAttach(ctx, x.id, client.ExecAttachOptions{TTY: x.request.TTY})
		conn = res.HijackedResponse
		return err
	})
	return conn, err
}

// runCommand copies input and output until the command has ended, and returns its exit code.
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

// sendInput sends the input, and its end. It outlasts Exec if the caller's Stdin does not return from
// Read. It does not close a terminal, because the engine would close the output too, but sends Ctrl-D:
// once at the beginning of a line, twice within a line.
func (x *execution) sendInput(conn client.HijackedResponse) {
	if !x.request.TTY {
		_, _ = io.Copy(conn.Conn, x.request.Stdin) // receiveOutput returns an error of the connection
		_ = conn.CloseWrite()
		return
	}
	last := lastByte('\n')
	if _, err := io.Copy(io.MultiWriter(conn.Conn, &last), x.request.Stdin); err != nil {
		return
	}
	_, _ = conn.Conn.Write(last.endOfInput())
}

// lastByte is a writer that keeps the last byte that was written.
type lastByte byte

// endOfInput returns what ends the input of a terminal after that byte: Ctrl-D, twice within a line.
func (b lastByte) endOfInput() []byte {
	if b == '\n' || b == '\r' {
		return []byte{4}
	}
	return []byte{4, 4}
}

// Write implements io.Writer.
func (b *lastByte) Write(p []byte) (int, error) {
	if len(p) > 0 {
		*b = lastByte(p[len(p)-1])
	}
	return len(p), nil
}

// followSize sends changes of the terminal's size to the engine, which applies them once the command
// has started. It ignores errors: the terminal then keeps its size.
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
	output := newFrames(reader, x.request.TTY)
	err := terminal.CopySplit(stdout, stderr, output)
	if receiver, ok := errors.AsType[receiverError](err); ok {
		return receiver.error
	}
	if err != nil {
		return driver.Errorf(driver.ErrUnavailable, "the connection to the command in container %s is lost: %w", engine.ShortID(x.target.ID), err)
	}
	return nil
}

// gateOutput returns a writer that passes the command's output on, but keeps the message of a refusal.
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

// receiverError is an error of the receiver of the output, not of the connection.
type receiverError struct{ error }

const (
	stateInterval = 10 * time.Millisecond
	// exitCodeWithin is how long the engine may take from the end of the output to the exit code.
	exitCodeWithin = 10 * time.Second
)

// awaitStart waits until the command has a process ID, or has ended. A command that has ended without
// a process ID was refused.
func (x *execution) awaitStart(ctx context.Context) error {
	if x.started || x.refused {
		return nil
	}
	state, err := x.awaitState(ctx, func(r client.ExecInspectResult) bool { return r.PID != 0 || !r.Running })
	x.started = err == nil && state.PID != 0
	x.refused = err == nil && state.PID == 0
	return err
}

func (x *execution) awaitState(ctx context.Context, isReached func(client.ExecInspectResult) bool) (state client.ExecInspectResult, err error) {
	for {
		state, err = x.inspectExec(ctx)
		if err != nil || isReached(state) {
			return state, err
		}
		if err := kit.Pause(ctx, x.access.options.Clock, stateInterval); err != nil {
			return state, err
		}
	}
}

func (x *execution) inspectExec(ctx context.Context) (state client.ExecInspectResult, err error) {
	ctx, cancel := x.access.withTimeout(ctx)
	defer cancel()
	err = x.access.options.Engine.Read(ctx, "inspect a command in container "+engine.ShortID(x.target.ID), func(ctx context.Context, e *client.Client) (err error) {
		state, err = e.ExecInspect(ctx, x.id, client.ExecInspectOptions{})
		return err
	})
	return state, err
}

// awaitEnd returns the exit code of a command whose output has ended.
func (x *execution) awaitEnd(ctx context.Context) (exitCode int, err error) {
	limited, cancel := context.WithTimeout(ctx, exitCodeWithin)
	defer cancel()
	state, err := x.awaitState(limited, func(r client.ExecInspectResult) bool { return !r.Running })
	switch {
	case err != nil && ctx.Err() == nil && limited.Err() != nil:
		return 0, driver.Errorf(driver.ErrUnavailable, "the connection to the command in container %s has ended before the command", engine.ShortID(x.target.ID))
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
	return driver.Errorf(kind, "command %q cannot be started in container %s: %.500s", x.request.Args[0], engine.ShortID(x.target.ID), text)
}

// endScript ends every process whose environment has the script's argument: first with SIGHUP, after
// two seconds with SIGKILL. It needs only a shell, no other programs.
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

// endTimeout limits how long Exec takes to start endScript, after its context has ended.
const endTimeout = 5 * time.Second

// endCommand runs endScript in the container. It ignores errors, since the container may lack a shell.
func (x *execution) endCommand(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	id, err := x.access.createExec(ctx, x.target.ID, client.ExecCreateOptions{Cmd: []string{"sh", "-c", endScript, "sh", x.mark}})
	if err == nil {
		err = x.access.options.Engine.Change(ctx, "end a command in container "+engine.ShortID(x.target.ID), func(ctx context.Context, e *client.Client) error {
			_, err := e.ExecStart(ctx, id, client.ExecStartOptions{Detach: true})
			return err
		})
	}
	x.access.options.Log.V(1).Info("Tried to end a command whose caller has left", "container", engine.ShortID(x.target.ID), "err", err)
}
