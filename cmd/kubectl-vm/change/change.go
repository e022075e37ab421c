// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// defaultEffectWait is how long a verb waits for the controller before it prints the effect of a change.
const defaultEffectWait = 15 * time.Second

// changedField is a field that a verb has changed.
type changedField struct {
	// path is the field of the spec, such as resource.cpu.
	path string
	// text describes the change, such as "cpu 2 -> 4".
	text string
}

// specChange is a change of the spec of one VM.
type specChange struct {
	patch  map[string]any
	fields []changedField
}

// changeOptions are the flags of verbs that change the spec of one VM.
type changeOptions struct {
	*kit.Options
	wait    bool
	timeout time.Duration
}

func (c *changeOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.wait, "wait", true, "wait for the controller to say what applies at once")
	cmd.Flags().DurationVar(&c.timeout, "timeout", defaultEffectWait, "how long to wait for that")
}

// changeVM changes a VM and prints the effect. done is the word for the change in the output, such as resized.
func (c *changeOptions) changeVM(ctx context.Context, arg, done string, change func(vm *api.VirtualMachine) (*specChange, error)) error {
	name, err := vms.ParseName(arg)
	if err != nil {
		return err
	}
	namespace, err := c.Namespace()
	if err != nil {
		return err
	}
	vm, made, err := c.applyChange(ctx, namespace, name, change)
	if err != nil {
		return err
	}
	if len(made.fields) == 0 {
		_, err := fmt.Fprintf(c.Out, "%s unchanged\n", vms.QualifiedName(name))
		return err
	}
	if _, err := fmt.Fprintf(c.Out, "%s %s\n", vms.QualifiedName(name), done); err != nil {
		return err
	}
	return c.reportEffect(ctx, vm, made)
}

// applyChange applies the change. The patch has the object's version as a precondition, since it replaces
// whole lists and must not undo the change of another. applyChange repeats the patch a few times after a
// conflict, since the controller also writes the object.
func (c *changeOptions) applyChange(ctx context.Context, namespace, name string, change func(vm *api.VirtualMachine) (*specChange, error)) (vm *api.VirtualMachine, made *specChange, err error) {
	err = retryOnConflict(func() error {
		if vm, err = vms.GetVM(ctx, c.Options, namespace, name); err != nil {
			return err
		}
		if vm.DeletionTimestamp != nil {
			return fmt.Errorf("%s: %w", name, errDeleting)
		}
		if made, err = change(vm); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(made.fields) == 0 {
			return nil
		}
		body := map[string]any{"metadata": map[string]any{"resourceVersion": vm.ResourceVersion}, "spec": made.patch}
		next, err := patchVM(ctx, c.Options, &vms.SelectedVM{Namespace: namespace, Name: name}, body)
		if err == nil {
			vm = next
		}
		return err
	})
	if apierrors.IsConflict(err) {
		err = fmt.Errorf("%s was not changed, since others kept changing it at the same time: %w", name, err)
	}
	return vm, made, err
}

// whenPassed returns the goal that the controller has passed a generation of the spec to the driver, or
// has failed to.
func whenPassed(generation int64) vms.Goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		status := &vm.Status
		switch {
		case vm.DeletionTimestamp != nil:
			return false, vms.ErrDeleted
		case status.ObservedGeneration < generation:
			return false, nil
		case status.Server == nil, status.Server.Generation >= generation, vms.IsStalled(vm):
			return true, nil
		}
		return vms.IsFailing(vm), nil
	}
}

// reportEffect waits for the controller, and prints for each field whether it already applies.
func (c *changeOptions) reportEffect(ctx context.Context, vm *api.VirtualMachine, made *specChange) error {
	if !c.wait {
		return c.printFields(made, func(changedField) string { return "" })
	}
	last, err := vms.AwaitVM(ctx, c.Options, c.timeout, &vms.Waiter{}, &vms.AwaitedVM{VM: vm, Reached: whenPassed(vm.Generation)})
	switch {
	case errors.Is(err, vms.ErrTimeout):
		return c.printFields(made, func(changedField) string { return "not applied yet" })
	case err != nil:
		return fmt.Errorf("%s: %w", vm.Name, err)
	}
	if err := c.printFields(made, func(f changedField) string { return c.effectOf(f, last) }); err != nil {
		return err
	}
	return c.reportProblem(last)
}

func (c *changeOptions) printFields(made *specChange, effect func(changedField) string) error {
	t := kit.Table{Columns: []kit.Column{{}, {}}, NoHeaders: true}
	for _, f := range made.fields {
		t.AddRow(kit.Cell{Text: "  " + f.text}, kit.Cell{Text: effect(f)})
	}
	for _, line := range t.Lines(kit.Terminal{}) {
		if _, err := fmt.Fprintln(c.Out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// effectOf says whether a field already applies, or when it will.
func (c *changeOptions) effectOf(f changedField, vm *api.VirtualMachine) string {
	status := &vm.Status
	switch {
	case slices.ContainsFunc(status.PendingFields, func(p string) bool {
		return p == f.path || strings.HasPrefix(p, f.path+".") || strings.HasPrefix(f.path, p+".")
	}):
		return fmt.Sprintf("waits for a restart: %s restart %s", c.Program, vm.Name)
	case status.RefusedField != nil && (status.RefusedField.Field == f.path || strings.HasPrefix(f.path, status.RefusedField.Field)):
		return "refused"
	case status.Server == nil, status.Server.Generation < vm.Generation:
		return "applies when the server is created"
	case status.Phase == api.PhaseStopped:
		return "applies when the VM is started"
	}
	return "applied"
}

// reportProblem returns an error if the change cannot be applied.
func (c *changeOptions) reportProblem(vm *api.VirtualMachine) error {
	if vms.IsStalled(vm) || vms.IsFailing(vm) {
		return fmt.Errorf("%s is %s (%s explain %s says more)", vm.Name, vms.ActivityText(vm), c.Program, vm.Name)
	}
	return nil
}
