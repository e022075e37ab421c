// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// awaitReady shows the progress of a VM until it is ready.
func (c *createOptions) awaitReady(ctx context.Context, vm *api.VirtualMachine) error {
	began := c.Clock.Now()
	last, err := c.awaitGoal(ctx, vm, whenReady(vm.Generation))
	if err != nil {
		return err
	}
	if !c.output.printsObjects() {
		_, _ = fmt.Fprintf(c.Out, "%s is ready after %s%s\n", vmName(vm.Name), elapsedText(c.Clock.Since(began)), reachText(last))
	}
	return nil
}

// awaitGoal shows the progress of a VM until it is as awaited, and returns it as it is then.
func (c *createOptions) awaitGoal(ctx context.Context, vm *api.VirtualMachine, reached goal) (*api.VirtualMachine, error) {
	ctx, cancel := withTimeout(ctx, c.timeout)
	defer cancel()
	now := c.Clock.Now()
	p := &createProgress{clock: c.Clock, began: now, stepBegan: now, printed: now, screen: screenOf(c.ErrOut), program: c.Program, vm: vm}
	line := newProgressLine(c.ErrOut, c.Clock, p.describe)
	defer line.stop()
	p.print = func(text string) { line.printAbove(c.ErrOut, "%s", text) }
	var last *api.VirtualMachine
	var failed error
	err := awaitVMs(ctx, c.Options, &waiter{
		open:  map[types.UID]*awaited{vm.UID: {vm: vm, reached: reached}},
		seen:  p.observeVM,
		ended: func(one *awaited, err error) { last, failed = one.vm, err },
	})
	line.stop()
	if err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, c.explainFailure(ctx, last, failed)
	}
	return last, nil
}

// explainFailure says why a VM is not ready.
func (c *createOptions) explainFailure(ctx context.Context, vm *api.VirtualMachine, failed error) error {
	if !errors.Is(failed, errStalled) && !errors.Is(failed, errTimeout) {
		return fmt.Errorf("%s: %w", vm.Name, failed)
	}
	if errors.Is(failed, errTimeout) {
		_, _ = fmt.Fprintf(c.ErrOut, "error: %s: %s\n\n", vm.Name, failed)
	}
	v, err := explainVM(context.WithoutCancel(ctx), c.withOutput(c.ErrOut), vm)
	if err != nil {
		return err
	}
	return &ExitError{Code: max(int(v), 1)}
}

// reachText says how to reach a VM.
func reachText(vm *api.VirtualMachine) string {
	text := ""
	if len(vm.Status.Addresses) > 0 {
		text = ", at " + strings.Join(vm.Status.Addresses, ", ")
	}
	if ports := portsOf(vm); len(ports) > 0 {
		text += ", ports " + strings.Join(ports, ", ")
	}
	return printable.Line(text)
}

// elapsedText returns a duration for people.
func elapsedText(d time.Duration) string {
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
