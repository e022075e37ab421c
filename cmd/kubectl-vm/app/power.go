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
	// begun and done are the words that are printed about a VM, before and after a wait.
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
		Example: o.formatExamples(verb.examples...),
		RunE:    func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args) },

		ValidArgsFunction: o.CompleteVMs,
	}
	p.addFlags(cmd)
	cmd.Flags().BoolVar(&p.wait, "wait", false, "wait until it is done")
	cmd.Flags().DurationVar(&p.timeout, "timeout", defaultWait, "with --wait: how long to wait, 0 without an end")
	return cmd
}

func (p *powerOptions) run(ctx context.Context, args []string) error {
	if err := p.parseNames(args); err != nil {
		return err
	}
	found, err := p.findVMs(ctx, p.Options)
	if err != nil {
		return err
	}
	w := &waiter{open: map[types.UID]*awaited{}}
	forEach(found, func(one *selected) { p.changeVM(ctx, one) }, func(one *selected) {
		if p.reportRequest(one); one.err == nil && p.wait {
			w.open[one.vm.UID] = &awaited{vm: one.vm, reached: whenPowered(one.vm.Generation), unchanged: one.unchanged != ""}
		}
	})
	if err := errors.Join(ctx.Err(), p.awaitVMs(ctx, w)); err != nil {
		return err
	}
	return p.result()
}

// changeVM changes one VM.
func (p *powerOptions) changeVM(ctx context.Context, chosen *selected) {
	if chosen.err != nil {
		return
	}
	if chosen.vm.DeletionTimestamp != nil {
		chosen.err = errDeleting
		return
	}
	change, unchanged, err := p.verb.change(chosen.vm, p.Clock.Now())
	if change == nil || err != nil {
		chosen.unchanged, chosen.err = unchanged, err
		return
	}
	patched, err := p.patchVM(ctx, chosen, map[string]any{"spec": change})
	if err != nil {
		chosen.err = err
		return
	}
	chosen.vm = patched
}

// patchVM changes fields of a VM. It is a merge patch and no server-side apply, as with kubectl
// scale: the user's word counts, and those who apply the field get a conflict that names
// this program.
func (o *Options) patchVM(ctx context.Context, chosen *selected, change any) (*api.VirtualMachine, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, fmt.Errorf("write the change: %w", err)
	}
	vms, err := o.VMs(chosen.namespace)
	if err != nil {
		return nil, err
	}
	vm, err := vms.Patch(ctx, chosen.name, types.MergePatchType, body, metav1.PatchOptions{FieldManager: fieldManager})
	if err != nil {
		return nil, describeVMError(err, chosen.namespace, chosen.name)
	}
	return vm, nil
}

// reportRequest prints what was requested of one VM, unless it is printed after the wait.
func (p *powerOptions) reportRequest(chosen *selected) {
	switch {
	case chosen.err != nil:
		p.addFailure(chosen.name, chosen.err)
	case chosen.unchanged != "":
		_, _ = fmt.Fprintf(p.Out, "%s unchanged (%s)\n", p.nameOf(chosen.vm), chosen.unchanged)
	case !p.wait:
		_, _ = fmt.Fprintf(p.Out, "%s %s\n", p.nameOf(chosen.vm), p.verb.begun)
	}
}

// awaitVMs waits for the VMs, and reports each.
func (p *powerOptions) awaitVMs(ctx context.Context, w *waiter) error {
	ctx, cancel := withTimeout(ctx, p.timeout)
	defer cancel()
	line := p.newProgressLine(w.describe)
	defer line.stop()
	w.ended = func(one *awaited, err error) {
		switch {
		case errors.Is(err, errTimeout):
			p.failed = true
			line.printAbove(p.ErrOut, "error: %s: %s: %s", one.vm.Name, err, activityOf(one.vm))
		case err != nil:
			p.failed = true
			line.printAbove(p.ErrOut, "error: %s", p.describeFor(one.vm.Name, err))
		default:
			if !one.unchanged {
				line.printAbove(p.Out, "%s %s", p.nameOf(one.vm), p.verb.done)
			}
			if text := p.unappliedText(one.vm); text != "" {
				line.printAbove(p.ErrOut, "%s %s", screenOf(p.ErrOut).paintText("Warning:", yellow), text)
			}
		}
	}
	return p.Options.awaitVMs(ctx, w)
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

// printWarning prints a warning as kubectl does.
func (o *Options) printWarning(text string) {
	s := screenOf(o.ErrOut)
	_, _ = fmt.Fprintf(o.ErrOut, "%s %s\n", s.paintText("Warning:", yellow), text)
}
