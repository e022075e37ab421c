// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/agent"
	"cloudnative.tw/drover/internal/machine/console"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/imageagent"
	"cloudnative.tw/drover/internal/terminal"
)

// guestAccess gives clients the console of the guest, and runs commands through its agent.
type guestAccess struct {
	progress *progress
	network  Network
	nonce    []byte // Options.GuestNonce
	clock    clock.Clock
	memory   execMemory

	// attach sets these, before the guest runs.
	monitor machine.Monitor
	console *console.Console
	agent   agent.Agent       // the QEMU guest agent, which the guest may lack
	image   *imageagent.Agent // Drover's agent in a container image's guest, nil for other guests
}

var _ control.Guest = (*guestAccess)(nil)

// attach sets the connections to QEMU.
func (g *guestAccess) attach(monitor machine.Monitor, serialConn, agentConn net.Conn) {
	line := newAgentLine(agentConn)
	g.monitor, g.console = monitor, console.New(serialConn)
	g.agent = agent.Agent{Clock: g.clock, Connect: func(ctx context.Context) (net.Conn, error) {
		if err := monitor.CheckAgent(ctx); err != nil {
			return nil, err
		}
		return line.takeTurn(ctx)
	}}
	if g.nonce != nil {
		g.image = imageagent.New(g.nonce, line.takeTurn)
	}
}

// setTime sets the clock of the guest.
func (g *guestAccess) setTime(ctx context.Context) error {
	if g.image != nil {
		return g.image.SetTime(ctx, g.clock.Now())
	}
	return g.agent.SetTime(ctx)
}

// guestFailure returns the error that clients get for a failure of the agent. A call's context may expire before the
// time limits of package agent do, which also means that the agent is silent.
func guestFailure(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return failure.ErrSilent
	}
	return err
}

// Console implements control.Guest.
func (g *guestAccess) Console(ctx context.Context, canWrite bool) (io.ReadWriteCloser, error) {
	if err := g.progress.checkRunning(); err != nil {
		return nil, err
	}
	return g.console.Open(ctx, canWrite)
}

// TakesInput implements control.Guest.
func (g *guestAccess) TakesInput() bool { return g.nonce != nil }

// Exec implements control.Guest. The QEMU guest agent needs the whole input before the command starts, and sends
// the output once the command has ended.
func (g *guestAccess) Exec(ctx context.Context, c terminal.Command) (exitCode int, err error) {
	if err := g.checkGuest(ctx); err != nil {
		return 0, guestFailure(err)
	}
	switch {
	case g.image != nil:
		return g.image.Exec(ctx, c)
	case c.TTY:
		return 0, failure.ErrTerminalUnsupported
	case len(c.Env) > 0 || c.User != "" || c.WorkingDir != "":
		return 0, failure.ErrSettingsUnsupported
	}
	a := g.agent
	err = a.CheckExec(ctx) // before the input is read, which a user may have to type
	if err == nil {
		exitCode, err = g.memory.execCommand(ctx, a, c)
	}
	return exitCode, guestFailure(err)
}

const (
	// maxResults is how many commands may have their output in memory at a time. outputWithin is how long
	// a caller may take to read the output, since other commands wait for the memory.
	maxResults, outputWithin = 2, 5 * time.Minute
	// outputPart is how many bytes are sent between two checks of the deadline.
	outputPart = 64 << 10
)

// execMemory bounds the memory for input and output of commands. The container has little memory besides
// QEMU's, and a user who runs commands must not be able to get the machine killed.
type execMemory struct{ inputSlots, resultSlots *semaphore.Weighted }

func newExecMemory() execMemory {
	return execMemory{semaphore.NewWeighted(failure.MaxInputs), semaphore.NewWeighted(maxResults)}
}

// execCommand runs a command through an agent, and sends its output.
func (m execMemory) execCommand(ctx context.Context, a agent.Agent, c terminal.Command) (exitCode int, err error) {
	input, release, err := m.readInput(c.Stdin)
	if err != nil {
		return 0, err
	}
	defer release()
	result, err := a.Exec(ctx, agent.Command{Args: c.Args, Stdin: input, Results: m.resultSlots})
	if err != nil && !errors.Is(err, failure.ErrOutputCut) {
		return 0, err
	}
	defer m.resultSlots.Release(1)
	deadline := time.After(outputWithin)
	for _, output := range []struct {
		writer io.Writer
		text   []byte
	}{{c.Stdout, result.Stdout}, {c.Stderr, result.Stderr}} {
		for part := range slices.Chunk(output.text, outputPart) {
			select {
			case <-deadline:
				return result.ExitCode, failure.ErrOutputCut
			default:
			}
			if _, writeErr := output.writer.Write(part); writeErr != nil {
				return result.ExitCode, writeErr
			}
		}
	}
	return result.ExitCode, err
}

// readInput reads the input of a command. A command with input takes one of failure.MaxInputs slots until release
// is called.
func (m execMemory) readInput(reader io.Reader) (input []byte, release func(), err error) {
	if reader == nil {
		return nil, func() {}, nil
	}
	first := make([]byte, 1)
	if _, err := io.ReadFull(reader, first); errors.Is(err, io.EOF) {
		return nil, func() {}, nil
	} else if err != nil {
		return nil, nil, err
	}
	if !m.inputSlots.TryAcquire(1) {
		return nil, nil, failure.ErrTooManyInputs
	}
	release = func() { m.inputSlots.Release(1) }
	input, err = io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(first), reader), failure.MaxInput+1))
	if err == nil && len(input) > failure.MaxInput {
		err = failure.ErrInputTooLong
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return input, release, nil
}

// Interfaces implements control.Guest.
func (g *guestAccess) Interfaces(ctx context.Context) ([]report.Interface, error) {
	if err := g.checkGuest(ctx); err != nil {
		return nil, guestFailure(err)
	}
	if g.image != nil {
		return g.image.Interfaces(ctx)
	}
	found, err := g.agent.Interfaces(ctx)
	return found, guestFailure(err)
}

// NetworkStatistics implements control.Guest.
func (g *guestAccess) NetworkStatistics(context.Context) (report.NetworkStatistics, error) {
	if err := g.progress.checkRunning(); err != nil {
		return report.NetworkStatistics{}, err
	}
	return g.network.Statistics(), nil
}

// checkGuest returns an error if the guest is not running or is paused.
func (g *guestAccess) checkGuest(ctx context.Context) error {
	if err := g.progress.checkRunning(); err != nil {
		return err
	}
	status, err := g.monitor.Status(ctx)
	switch {
	case err != nil:
		return failure.ErrFailed
	case status == machine.StatusPaused:
		return failure.ErrPaused
	}
	return nil
}

// mayLackAgent reports whether err may mean that the guest lacks an agent or is still booting, or that its agent does not
// support the command.
func mayLackAgent(err error) bool {
	return errors.Is(err, failure.ErrNoAgent) || errors.Is(err, failure.ErrDisabled) || errors.Is(err, failure.ErrSilent)
}

// agentWaitTimeout is how long a conversation waits for the agent while other conversations use
// it. That is longer than a conversation with a silent agent takes. If the agent is not free by
// then, the waiting conversation fails with ErrBusy, and may try again.
const agentWaitTimeout = 15 * time.Second

// agentLine is the connection to the guest's agent, which only one conversation uses at a time.
type agentLine struct {
	conn net.Conn
	turn chan struct{} // a semaphore, full while a conversation has the line
}

func newAgentLine(conn net.Conn) *agentLine { return &agentLine{conn, make(chan struct{}, 1)} }

// takeTurn waits until the line is free, and returns it for one conversation. Close frees the line.
func (l *agentLine) takeTurn(ctx context.Context) (net.Conn, error) {
	timer := time.NewTimer(agentWaitTimeout)
	defer timer.Stop()
	select {
	case l.turn <- struct{}{}:
		return &agentTurn{Conn: l.conn, line: l}, nil
	case <-timer.C:
		return nil, failure.ErrBusy
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// agentTurn is the line during one conversation. Packages agent and imageagent skip what the agent still sends for an
// earlier conversation.
type agentTurn struct {
	net.Conn

	line     *agentLine
	isClosed atomic.Bool
	using    sync.RWMutex // held for reading by each Read and Write
}

// Read implements io.Reader.
func (t *agentTurn) Read(p []byte) (int, error) { return t.useLine(t.Conn.Read, p) }

// Write implements io.Writer.
func (t *agentTurn) Write(p []byte) (int, error) { return t.useLine(t.Conn.Write, p) }

func (t *agentTurn) useLine(call func([]byte) (int, error), p []byte) (int, error) {
	t.using.RLock()
	defer t.using.RUnlock()
	if t.isClosed.Load() {
		return 0, net.ErrClosed
	}
	return call(p)
}

// Close implements net.Conn. It interrupts Read and Write before it frees the line.
func (t *agentTurn) Close() error {
	if t.isClosed.Swap(true) {
		return net.ErrClosed
	}
	err := t.SetDeadline(time.Unix(1, 0))
	t.using.Lock()
	defer t.using.Unlock()
	err = errors.Join(err, t.SetDeadline(time.Time{}))
	<-t.line.turn
	return err
}
