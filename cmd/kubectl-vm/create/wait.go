// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package create

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

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

// awaitGoal shows the progress of a VM until it is as awaited, and returns it as it is then.
func (c *createOptions) awaitGoal(ctx context.Context, vm *api.VirtualMachine, reached vms.Goal) (*api.VirtualMachine, error) {
	ctx, cancel := vms.WithTimeout(ctx, c.timeout)
	defer cancel()
	now := c.Clock.Now()
	p := &progress{clock: c.Clock, began: now, stepBegan: now, printed: now, screen: kit.ScreenOf(c.ErrOut), program: c.Program, vm: vm}
	line := kit.NewProgressLine(c.ErrOut, c.Clock, p.describeProgress)
	defer line.Stop()
	p.print = func(text string) { line.PrintAbove(c.ErrOut, "%s", text) }
	var last *api.VirtualMachine
	var failed error
	err := vms.AwaitVMs(ctx, c.Options, &vms.Waiter{
		Open:  map[types.UID]*vms.AwaitedVM{vm.UID: {VM: vm, Reached: reached}},
		Seen:  p.observeVM,
		Ended: func(one *vms.AwaitedVM, err error) { last, failed = one.VM, err },
	})
	line.Stop()
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
	if !errors.Is(failed, vms.ErrStalled) && !errors.Is(failed, vms.ErrTimeout) {
		return fmt.Errorf("%s: %w", vm.Name, failed)
	}
	if errors.Is(failed, vms.ErrTimeout) {
		_, _ = fmt.Fprintf(c.ErrOut, "error: %s: %s\n\n", vm.Name, failed)
	}
	v, err := show.ExplainVM(context.WithoutCancel(ctx), c.WithOutput(c.ErrOut), vm)
	if err != nil {
		return err
	}
	return &kit.ExitError{Code: max(int(v), 1)}
}

// reachText says how to reach a VM.
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
