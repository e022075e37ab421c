// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// fieldManager owns the fields that this program changes, in metadata.managedFields.
const fieldManager = "kubectl-vm"

// defaultWait is how long a wait lasts unless --timeout says otherwise.
const defaultWait = 10 * time.Minute

// powerVerb is a verb that changes the power state of VMs.
type powerVerb struct {
	use, short, long string
	examples         []string
	// begun and done are what is printed of a VM, before and after a wait.
	begun, done string
	// change returns the change of the spec, or nil and why there is none.
	change func(vm *api.VirtualMachine, now time.Time) (*powerChange, string, error)
}

// powerChange is a change of a spec. Fields that are not set stay.
type powerChange struct {
	Action      api.Action   `json:"action,omitempty"`
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
}

// errDeleting means that a VM is being deleted.
var errDeleting = errors.New("it is being deleted")

type powerOptions struct {
	batch
	verb powerVerb
}

// newPowerCommand returns a power verb.
func newPowerCommand(o *Options, verb powerVerb) *cobra.Command {
	p := &powerOptions{batch: batch{Options: o}, verb: verb}
	cmd := &cobra.Command{
		Use:     verb.use + " (NAME... | -l SELECTOR | --all)",
		GroupID: groupLifecycle,
		Short:   verb.short,
		Long:    verb.short + ".\n\n" + verb.long,
		Example: o.examples(verb.examples...),
		RunE:    func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args) },

		ValidArgsFunction: o.CompleteVMs,
	}
	p.addFlags(cmd)
	cmd.Flags().BoolVar(&p.wait, "wait", false, "wait until it is done")
	cmd.Flags().DurationVar(&p.timeout, "timeout", defaultWait, "with --wait: how long to wait, 0 without an end")
	return cmd
}

func (p *powerOptions) run(ctx context.Context, args []string) error {
	if err := p.parse(args); err != nil {
		return err
	}
	found, err := p.find(ctx, p.Options)
	if err != nil {
		return err
	}
	w := &waiter{open: map[types.UID]*awaited{}}
	forEach(found, func(one *selected) { p.change(ctx, one) }, func(one *selected) {
		if p.report(one); one.err == nil && p.wait {
			w.open[one.vm.UID] = &awaited{vm: one.vm, reached: whenPowered(one.vm.Generation), unchanged: one.unchanged != ""}
		}
	})
	if err := errors.Join(ctx.Err(), p.await(ctx, w)); err != nil {
		return err
	}
	return p.result()
}

// change changes one VM.
func (p *powerOptions) change(ctx context.Context, one *selected) {
	if one.err != nil {
		return
	}
	if one.vm.DeletionTimestamp != nil {
		one.err = errDeleting
		return
	}
	change, unchanged, err := p.verb.change(one.vm, p.Clock.Now())
	if change == nil || err != nil {
		one.unchanged, one.err = unchanged, err
		return
	}
	patched, err := p.patchVM(ctx, one, map[string]any{"spec": change})
	if err != nil {
		one.err = err
		return
	}
	one.vm = patched
}

// patchVM changes fields of a VM. It is a merge patch and no server-side apply, as with kubectl
// scale: the user's word counts, and those who apply the field get a conflict that names
// this program.
func (o *Options) patchVM(ctx context.Context, one *selected, change any) (*api.VirtualMachine, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("write the change: %w", err)
	}
	vms, err := o.VMs(one.namespace)
	if err != nil {
		return nil, err
	}
	vm, err := vms.Patch(ctx, one.name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, describeVMError(err, one.namespace, one.name)
	}
	return vm, nil
}

// report prints what was requested of one VM, unless it is printed after the wait.
func (p *powerOptions) report(one *selected) {
	switch {
	case one.err != nil:
		p.fail(one.name, one.err)
	case one.unchanged != "":
		_, _ = fmt.Fprintf(p.Out, "%s unchanged (%s)\n", p.nameOf(one.vm), one.unchanged)
	case !p.wait:
		_, _ = fmt.Fprintf(p.Out, "%s %s\n", p.nameOf(one.vm), p.verb.begun)
	}
}

// await waits for the VMs, and reports each.
func (p *powerOptions) await(ctx context.Context, w *waiter) error {
	ctx, cancel := withTimeout(ctx, p.timeout)
	defer cancel()
	line := p.newProgressLine(w.describe)
	defer line.stop()
	w.ended = func(one *awaited, err error) {
		switch {
		case errors.Is(err, errTimeout):
			p.failed = true
			line.print(p.ErrOut, "error: %s: %s: %s", one.vm.Name, err, doing(one.vm))
		case err != nil:
			p.failed = true
			line.print(p.ErrOut, "error: %s", p.describeFor(one.vm.Name, err))
		default:
			if !one.unchanged {
				line.print(p.Out, "%s %s", p.nameOf(one.vm), p.verb.done)
			}
			if text := p.unappliedText(one.vm); text != "" {
				line.print(p.ErrOut, "%s %s", screenOf(p.ErrOut).paint("Warning:", yellow), text)
			}
		}
	}
	return p.Options.await(ctx, w)
}

// unappliedText says what of a VM's spec does not apply yet.
func (o *Options) unappliedText(vm *api.VirtualMachine) string {
	switch status := &vm.Status; {
	case status.RefusedField != nil:
		return printable.Line(fmt.Sprintf("%s of %s is refused: %s", status.RefusedField.Field, vm.Name, status.RefusedField.Message))
	case len(status.PendingFields) > 0:
		return fmt.Sprintf("%s of %s waits for a restart: %s restart %s", strings.Join(status.PendingFields, ", "), vm.Name, o.Program, vm.Name)
	}
	return ""
}

// warn prints a warning as kubectl does.
func (o *Options) warn(text string) {
	s := screenOf(o.ErrOut)
	_, _ = fmt.Fprintf(o.ErrOut, "%s %s\n", s.paint("Warning:", yellow), text)
}
