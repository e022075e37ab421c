// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"io"

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
	if err != nil {
		return 0, guestFailure(err)
	}
	input, err := io.ReadAll(io.LimitReader(c.Stdin, agent.MaxInput+1))
	if err != nil {
		return 0, err
	}
	result, err := a.Exec(ctx, agent.Command{Args: c.Args, Stdin: input})
	for _, output := range []struct {
		to   io.Writer
		text []byte
	}{{c.Stdout, result.Stdout}, {c.Stderr, result.Stderr}} {
		if _, writeErr := output.to.Write(output.text); writeErr != nil {
			return result.ExitCode, writeErr
		}
	}
	return result.ExitCode, guestFailure(err)
}

// Interfaces implements control.Guest.
func (g reachable) Interfaces(ctx context.Context) ([]control.Interface, error) {
	a, err := g.agent(ctx)
	if err != nil {
		return nil, err
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
		return agent.Agent{}, control.ErrNotRunning
	}
	return g.machine.Agent(clock.RealClock{}), nil
}
