// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// defaultEffectWait is how long a verb waits to say what a change has brought about.
const defaultEffectWait = 15 * time.Second

// changedField is a field that a verb has changed.
type changedField struct {
	// path is the field of the spec, such as resource.cpu.
	path string
	// text says what is changed, such as "cpu 2 -> 4".
	text string
}

// specChange is a change of one VM.
type specChange struct {
	patch  map[string]any
	fields []changedField
}

// changeOptions change the spec of one VM, and say what applies at once.
type changeOptions struct {
	*Options
	wait    bool
	timeout time.Duration
}

func (c *changeOptions) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&c.wait, "wait", true, "wait for the controller to say what applies at once")
	cmd.Flags().DurationVar(&c.timeout, "timeout", defaultEffectWait, "how long to wait for that")
}

// run changes a VM. done is the word for the change in the output, such as resized.
func (c *changeOptions) run(ctx context.Context, arg, done string, change func(vm *api.VirtualMachine) (*specChange, error)) error {
	name, err := parseName(arg)
	if err != nil {
		return err
	}
	namespace, err := c.Namespace()
	if err != nil {
		return err
	}
	vm, made, err := c.apply(ctx, namespace, name, change)
	if err != nil {
		return err
	}
	if len(made.fields) == 0 {
		_, err := fmt.Fprintf(c.Out, "%s unchanged\n", vmName(name))
		return err
	}
	if _, err := fmt.Fprintf(c.Out, "%s %s\n", vmName(name), done); err != nil {
		return err
	}
	return c.reportEffect(ctx, vm, made)
}

// apply makes the change. The object's version is a precondition, so that no other change of a
// list is lost; it tries again a few times, since the controller writes the object too.
func (c *changeOptions) apply(ctx context.Context, namespace, name string, change func(vm *api.VirtualMachine) (*specChange, error)) (vm *api.VirtualMachine, made *specChange, err error) {
	err = retryOnConflict(func() error {
		if vm, err = getVM(ctx, c.Options, namespace, name); err != nil {
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
		next, err := patchVM(ctx, c.Options, &selected{namespace: namespace, name: name}, body)
		if err == nil {
			vm = next
		}
		return err
	})
	if apierrors.IsConflict(err) {
		err = fmt.Errorf("%s was changed by others several times meanwhile: %w", name, err)
	}
	return vm, made, err
}

// whenPassed awaits that the controller has passed a generation of the spec to the driver, or
// could not.
func whenPassed(generation int64) goal {
	return func(vm *api.VirtualMachine) (bool, error) {
		status := &vm.Status
		switch {
		case vm.DeletionTimestamp != nil:
			return false, errDeletedMeanwhile
		case status.ObservedGeneration < generation:
			return false, nil
		case status.Server == nil, status.Server.Generation >= generation, isStalled(vm):
			return true, nil
		}
		return isFailing(vm), nil
	}
}

// reportEffect says of each field whether it applies already.
func (c *changeOptions) reportEffect(ctx context.Context, vm *api.VirtualMachine, made *specChange) error {
	if !c.wait {
		return c.printFields(made, func(changedField) string { return "" })
	}
	ctx, cancel := withTimeout(ctx, c.timeout)
	defer cancel()
	last, failed := vm, error(nil)
	w := &waiter{
		open:  map[types.UID]*awaited{vm.UID: {vm: vm, reached: whenPassed(vm.Generation)}},
		ended: func(one *awaited, err error) { last, failed = one.vm, err },
	}
	line := newProgressLine(c.ErrOut, c.Clock, w.describe)
	err := awaitVMs(ctx, c.Options, w)
	line.stop()
	switch {
	case err != nil:
		return err
	case errors.Is(failed, errTimeout):
		return c.printFields(made, func(changedField) string { return "not applied yet" })
	case failed != nil:
		return fmt.Errorf("%s: %w", vm.Name, failed)
	}
	if err := c.printFields(made, func(f changedField) string { return c.effectOf(f, last) }); err != nil {
		return err
	}
	return c.reportProblem(last)
}

func (c *changeOptions) printFields(made *specChange, effect func(changedField) string) error {
	t := table{columns: []column{{}, {}}, noHeaders: true}
	for _, f := range made.fields {
		t.addRow(cell{text: "  " + f.text}, cell{text: effect(f)})
	}
	for _, line := range t.lines(screen{}) {
		if _, err := fmt.Fprintln(c.Out, strings.TrimRight(line, " \n")); err != nil {
			return err
		}
	}
	return nil
}

// effectOf says whether a field applies already.
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

// reportProblem fails if the change cannot be applied.
func (c *changeOptions) reportProblem(vm *api.VirtualMachine) error {
	if isStalled(vm) || isFailing(vm) {
		return fmt.Errorf("%s is %s (%s explain %s says more)", vm.Name, activityOf(vm), c.Program, vm.Name)
	}
	return nil
}
