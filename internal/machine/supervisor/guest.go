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

// guestAccess gives people the console of the guest, and runs commands by one of its agents.
type guestAccess struct {
	progress *progress
	network  Network
	nonce    []byte // of Config.GuestNonce
	clock    clock.Clock
	memory   execMemory

	// The connections to QEMU, which are set before the guest runs.
	monitor machine.Monitor
	console *console.Console
	agent   agent.Agent       // the QEMU guest agent, which the guest may lack
	image   *imageagent.Agent // of the guest of a container image
}

var _ control.Guest = (*guestAccess)(nil)

// attach connects to the guest of a QEMU that answers.
func (g *guestAccess) attach(monitor machine.Monitor, serialLine, agentConn net.Conn) {
	line := newAgentLine(agentConn)
	g.monitor, g.console = monitor, console.New(serialLine)
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

// guestFailure returns the error that clients get for a failure of the agent. A call has less time than the agent.
func guestFailure(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return failure.ErrSilent
	}
	return err
}

// Console implements control.Guest.
func (g *guestAccess) Console(ctx context.Context, types bool) (io.ReadWriteCloser, error) {
	if err := g.progress.checkRunning(); err != nil {
		return nil, err
	}
	return g.console.Open(ctx, types)
}

// TakesInput implements control.Guest.
func (g *guestAccess) TakesInput() bool { return g.nonce != nil }

// Exec implements control.Guest. The QEMU guest agent takes all input at once, before the command starts, and
// the output comes once the command has ended.
func (g *guestAccess) Exec(ctx context.Context, c terminal.Command) (exitCode int, err error) {
	if err := g.checkGuest(ctx); err != nil {
		return 0, guestFailure(err)
	}
	switch {
	case g.image != nil:
		return g.image.Exec(ctx, c)
	case c.TTY:
		return 0, failure.ErrTerminal
	}
	a := g.agent
	err = a.CheckExec(ctx) // before a person has typed
	if err == nil {
		exitCode, err = g.memory.execCommand(ctx, a, c)
	}
	return exitCode, guestFailure(err)
}

const (
	// maxResults is how many commands may have their output in memory at a time, and outputWithin how
	// long a caller may take to read it, since others wait for its place.
	maxResults, outputWithin = 2, 5 * time.Minute
	// outputPart is how much of it is sent between two looks at the time.
	outputPart = 64 << 10
)

// execMemory bounds what commands in the guest keep in memory. The container has little besides QEMU's,
// and who may run commands must not have the machine killed.
type execMemory struct{ inputs, results *semaphore.Weighted }

func newExecMemory() execMemory {
	return execMemory{semaphore.NewWeighted(failure.MaxInputs), semaphore.NewWeighted(maxResults)}
}

// execCommand runs a command by an agent.
func (m execMemory) execCommand(ctx context.Context, a agent.Agent, c terminal.Command) (exitCode int, err error) {
	input, release, err := m.readInput(c.Stdin)
	if err != nil {
		return 0, err
	}
	defer release()
	result, err := a.Exec(ctx, agent.Command{Args: c.Args, Stdin: input, Results: m.results})
	if err != nil && !errors.Is(err, failure.ErrOutputCut) {
		return 0, err
	}
	defer m.results.Release(1)
	late := time.After(outputWithin)
	for _, output := range []struct {
		to   io.Writer
		text []byte
	}{{c.Stdout, result.Stdout}, {c.Stderr, result.Stderr}} {
		for part := range slices.Chunk(output.text, outputPart) {
			select {
			case <-late:
				return result.ExitCode, failure.ErrOutputCut
			default:
			}
			if _, writeErr := output.to.Write(part); writeErr != nil {
				return result.ExitCode, writeErr
			}
		}
	}
	return result.ExitCode, err
}

// readInput reads the input of a command, which takes one of the places for input until release. Without
// input it takes none.
func (m execMemory) readInput(reader io.Reader) (input []byte, release func(), err error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(reader, first); errors.Is(err, io.EOF) {
		return nil, func() {}, nil
	} else if err != nil {
		return nil, nil, err
	}
	if !m.inputs.TryAcquire(1) {
		return nil, nil, failure.ErrInputs
	}
	release = func() { m.inputs.Release(1) }
	input, err = io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(first), reader), failure.MaxInput+1))
	if err == nil && len(input) > failure.MaxInput {
		err = failure.ErrInputLong
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

// checkGuest fails unless the guest runs and is not paused.
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

// isAgentMissing reports whether a guest cannot do what its agent is asked for, or boots.
func isAgentMissing(err error) bool {
	return errors.Is(err, failure.ErrNoAgent) || errors.Is(err, failure.ErrDisabled) || errors.Is(err, failure.ErrSilent)
}

// agentFreeWithin is how long a client waits for the agent while others talk to it, which is
// longer than one of them waits for an agent that is silent. An answer that goes on may take
// another client longer than that: then this one fails with ErrBusy, and may try again.
const agentFreeWithin = 15 * time.Second

// agentLine is the connection to the guest's agent, which one conversation has at a time.
type agentLine struct {
	conn net.Conn
	turn chan struct{} // has a value while a conversation has the line
}

func newAgentLine(conn net.Conn) *agentLine { return &agentLine{conn, make(chan struct{}, 1)} }

// takeTurn waits for the line.
func (l *agentLine) takeTurn(ctx context.Context) (net.Conn, error) {
	timer := time.NewTimer(agentFreeWithin)
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

// agentTurn is the line as one conversation has it. What the agent sends after the turn is skipped by the
// next conversation.
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

// Close implements net.Conn. It gives the line to the next conversation once this one has stopped using it.
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
