// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/show"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// awaitReady shows the progress of a VM until it is ready.
func (c *createOptions) awaitReady(ctx context.Context, vm *api.VirtualMachine) error {
	began := c.Clock.Now()
	last, err := c.awaitGoal(ctx, vm, vms.WhenReady(vm.Generation))
	if err != nil {
		return err
	}
	if !c.output.PrintsObjects() {
		_, _ = fmt.Fprintf(c.Out, "%s is ready after %s%s\n", vms.QualifiedName(vm.Name), elapsedText(c.Clock.Since(began)), reachText(last))
	}
	return nil
}

// awaitGoal shows the progress of a VM until it has reached a goal, and returns its last version.
func (c *createOptions) awaitGoal(ctx context.Context, vm *api.VirtualMachine, goal vms.Goal) (*api.VirtualMachine, error) {
	now := c.Clock.Now()
	p := &progress{clock: c.Clock, began: now, stepBegan: now, printed: now, terminal: kit.TerminalOf(c.ErrOut), program: c.Program, vm: vm}
	w := &vms.Waiter{Seen: p.observeVM, Describe: p.describeProgress}
	p.print = func(text string) { w.PrintAbove(c.ErrOut, "%s", text) }
	last, err := vms.AwaitVM(ctx, c.Options, c.timeout, w, &vms.AwaitedVM{VM: vm, Reached: goal})
	if err != nil {
		return nil, c.explainFailure(ctx, last, err)
	}
	return last, nil
}

// explainFailure prints why a VM is not ready, after a wait has failed, and returns the error of the verb.
func (c *createOptions) explainFailure(ctx context.Context, vm *api.VirtualMachine, waitErr error) error {
	if !errors.Is(waitErr, vms.ErrStalled) && !errors.Is(waitErr, vms.ErrTimeout) {
		return fmt.Errorf("%s: %w", vm.Name, waitErr)
	}
	if errors.Is(waitErr, vms.ErrTimeout) {
		_, _ = fmt.Fprintf(c.ErrOut, "error: %s: %s\n\n", vm.Name, waitErr)
	}
	v, err := show.ExplainVM(context.WithoutCancel(ctx), c.WithOutput(c.ErrOut), vm)
	if err != nil {
		return err
	}
	return &kit.ExitError{Code: max(int(v), 1)}
}

// reachText says at which addresses and ports a VM can be reached.
func reachText(vm *api.VirtualMachine) string {
	text := ""
	if len(vm.Status.Addresses) > 0 {
		text = ", at " + strings.Join(vm.Status.Addresses, ", ")
	}
	if ports := vms.PortTexts(vm); len(ports) > 0 {
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
