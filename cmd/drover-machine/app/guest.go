// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/agent"
	"cloudnative.tw/drover/internal/machine/control"
)

// reachable is a run as people reach its guest.
type reachable struct{ *run }

var _ control.Guest = reachable{}

// guestFailures are what clients learn of a failure.
var guestFailures = []struct{ of, as error }{
	{agent.ErrCommandNotFound, control.ErrCommandNotFound},
	{agent.ErrCommandNotExecutable, control.ErrCommandNotExecutable},
	{agent.ErrCommand, control.ErrCommand},
	{agent.ErrNoAgent, control.ErrNoAgent},
	{agent.ErrBusy, control.ErrBusy},
	{agent.ErrDisabled, control.ErrDisabled},
	{agent.ErrEndUnknown, control.ErrEndUnknown},
	{agent.ErrOutputCut, control.ErrOutputCut},
	{agent.ErrSilent, control.ErrSilent},
	{agent.ErrBadAnswer, control.ErrSilent},
	{agent.ErrRefused, control.ErrDisabled},
	{context.DeadlineExceeded, control.ErrSilent}, // of a call, which has less time than the agent
}

// guestFailure returns what clients learn of an error.
func guestFailure(err error) error {
	for _, f := range guestFailures {
		if errors.Is(err, f.of) {
			return f.as
		}
	}
	return err
}

// Console implements control.Guest.
func (g reachable) Console(ctx context.Context, types bool) (io.ReadWriteCloser, error) {
	if err := g.checkRunning(); err != nil {
		return nil, err
	}
	return g.serial.attach(ctx, types)
}

// Exec implements control.Guest. The agent takes all input at once, before the command starts, and
// the output comes once the command has ended.
func (g reachable) Exec(ctx context.Context, c control.Command) (exitCode int, err error) {
	a, err := g.agent(ctx)
	if err == nil {
		err = a.CheckExec(ctx) // before a person has typed
	}
	if err == nil {
		exitCode, err = g.memory.exec(ctx, a, c)
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
	return execMemory{semaphore.NewWeighted(control.MaxInputs), semaphore.NewWeighted(maxResults)}
}

// exec runs a command by an agent.
func (m execMemory) exec(ctx context.Context, a agent.Agent, c control.Command) (exitCode int, err error) {
	input, release, err := m.readInput(c.Stdin)
	if err != nil {
		return 0, err
	}
	defer release()
	result, err := a.Exec(ctx, agent.Command{Args: c.Args, Stdin: input, Results: m.results})
	if err != nil && !errors.Is(err, agent.ErrOutputCut) {
		return 0, err
	}
	defer m.results.Release(1)
	until := time.Now().Add(outputWithin)
	for _, output := range []struct {
		to   io.Writer
		text []byte
	}{{c.Stdout, result.Stdout}, {c.Stderr, result.Stderr}} {
		for part := range slices.Chunk(output.text, outputPart) {
			if time.Now().After(until) {
				return result.ExitCode, control.ErrOutputCut
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
func (m execMemory) readInput(from io.Reader) (input []byte, release func(), err error) {
	first := make([]byte, 1)
	if _, err := io.ReadFull(from, first); errors.Is(err, io.EOF) {
		return nil, func() {}, nil
	} else if err != nil {
		return nil, nil, err
	}
	if !m.inputs.TryAcquire(1) {
		return nil, nil, control.ErrInputs
	}
	release = func() { m.inputs.Release(1) }
	input, err = io.ReadAll(io.LimitReader(io.MultiReader(bytes.NewReader(first), from), agent.MaxInput+1))
	if err == nil && len(input) > agent.MaxInput {
		err = control.ErrInputLong
	}
	if err != nil {
		release()
		return nil, nil, err
	}
	return input, release, nil
}

// Interfaces implements control.Guest.
func (g reachable) Interfaces(ctx context.Context) ([]control.Interface, error) {
	a, err := g.agent(ctx)
	if err != nil {
		return nil, guestFailure(err)
	}
	found, err := a.Interfaces(ctx)
	all := make([]control.Interface, len(found))
	for n, i := range found {
		all[n] = control.Interface(i)
	}
	return all, guestFailure(err)
}

// agent returns the agent of a guest that runs and is not paused.
func (g reachable) agent(ctx context.Context) (agent.Agent, error) {
	if err := g.checkRunning(); err != nil {
		return agent.Agent{}, err
	}
	status, err := g.machine.Status(ctx)
	switch {
	case err != nil:
		return agent.Agent{}, control.ErrFailed
	case status == machine.StatusPaused:
		return agent.Agent{}, control.ErrPaused
	}
	return g.machine.Agent(clock.RealClock{}), nil
}
