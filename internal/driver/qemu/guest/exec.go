// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/agent"
)

// agentErrors are the kinds of the contract for what fails with a guest's agent. One that is
// missing here, ErrEndUnknown, has no kind: the command may have been started.
var agentErrors = []struct{ from, kind error }{
	{agent.ErrCommandNotFound, driver.ErrCommandNotFound},
	{agent.ErrCommandNotExecutable, driver.ErrCommandNotExecutable},
	{agent.ErrCommand, driver.ErrInvalid},
	{agent.ErrNoAgent, driver.ErrUnsupported},
	{agent.ErrDisabled, driver.ErrUnsupported},
	{agent.ErrOutputCut, driver.ErrUnsupported},
	{agent.ErrBusy, driver.ErrRetry},
	{agent.ErrSilent, driver.ErrRetry},
	{agent.ErrBadAnswer, driver.ErrRetry},
	{agent.ErrRefused, driver.ErrRetry},
}

// Exec implements driver.Executor, by the guest's agent. That takes all input at once, before
// the command starts, and returns the output once the command has ended.
func (g *Guests) Exec(ctx context.Context, uid types.UID, r driver.ExecRequest) (exitCode int, err error) {
	if r.TTY {
		return 0, driver.Errorf(driver.ErrUnsupported, "tty: a command in a machine has no terminal, because the guest agent gives it none: leave it out, or use ssh or the console")
	}
	s, err := g.findAnswering(ctx, uid)
	if err != nil {
		return 0, err
	}
	a, command := s.Agent(g.host.Clock), agent.Command{Args: r.Command}
	if r.Stdin != nil {
		if err := a.CheckExec(ctx); err != nil { // before a person has typed
			return 0, classify(ctx, err)
		}
		in := &input{from: r.Stdin, namespace: s.Namespace, kept: &g.inputs}
		defer in.release()
		if command.Stdin, err = in.readAll(ctx, g.host.Clock); err != nil {
			return 0, err
		}
	}
	result, err := a.Exec(ctx, command)
	if errors.Is(err, agent.ErrEndUnknown) {
		return 0, err
	}
	if err != nil && !errors.Is(err, agent.ErrOutputCut) {
		return 0, classify(ctx, err)
	}
	for _, output := range []struct {
		to   io.Writer
		text []byte
	}{{r.Stdout, result.Stdout}, {r.Stderr, result.Stderr}} {
		if output.to == nil || len(output.text) == 0 {
			continue
		}
		if _, err := output.to.Write(output.text); err != nil {
			return result.ExitCode, fmt.Errorf("passing on the output of the command: %w", err)
		}
	}
	return result.ExitCode, classify(ctx, err)
}

// findAnswering returns a server whose guest can answer.
func (g *Guests) findAnswering(ctx context.Context, uid types.UID) (*instance.Instance, error) {
	s, err := g.findRunning(ctx, uid)
	if err == nil && s.IsPaused() {
		err = driver.Errorf(driver.ErrRetry, "the server %s is paused", uid)
	}
	return s, err
}

// Interfaces implements driver.InterfaceLister, by the guest's agent.
func (g *Guests) Interfaces(ctx context.Context, uid types.UID) ([]driver.Interface, error) {
	s, err := g.findAnswering(ctx, uid)
	if err != nil {
		return nil, err
	}
	reported, err := s.Agent(g.host.Clock).Interfaces(ctx)
	if err != nil {
		return nil, classify(ctx, err)
	}
	found := make([]driver.Interface, len(reported))
	for i, r := range reported {
		found[i] = driver.Interface(r)
	}
	return found, nil
}
