// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

type powerOptions struct {
	batch
	verb powerVerb
}

// NewPowerCommands returns the verbs that change the power state: start, stop and so on.
func NewPowerCommands(o *kit.Options) []*cobra.Command {
	all := make([]*cobra.Command, len(powerVerbs))
	for i, verb := range powerVerbs {
		all[i] = newPowerCommand(o, verb)
	}
	return all
}

func newPowerCommand(o *kit.Options, verb powerVerb) *cobra.Command {
	p := &powerOptions{batch: batch{Options: o}, verb: verb}
	cmd := &cobra.Command{
		Use:     verb.name + " (NAME... | -l SELECTOR | --all)",
		GroupID: kit.GroupLifecycle,
		Short:   verb.short,
		Long:    verb.short + ".\n\n" + verb.long,
		Example: o.FormatExamples(verb.examples...),
		RunE:    func(cmd *cobra.Command, args []string) error { return p.changeVMs(cmd.Context(), args) },

		ValidArgsFunction: vms.CompleteVMs(o),
	}
	p.AddFlags(cmd)
	cmd.Flags().BoolVar(&p.wait, "wait", false, "wait until it is done")
	cmd.Flags().DurationVar(&p.timeout, "timeout", vms.DefaultWait, "with --wait: how long to wait; 0 means no limit")
	return cmd
}

func (p *powerOptions) changeVMs(ctx context.Context, args []string) error {
	if err := p.ParseNames(args); err != nil {
		return err
	}
	found, err := p.FindVMs(ctx, p.Options)
	if err != nil {
		return err
	}
	w := &vms.Waiter{Open: map[types.UID]*vms.AwaitedVM{}}
	vms.ForEach(found, func(vm *vms.SelectedVM) { p.changeVM(ctx, vm) }, func(vm *vms.SelectedVM) {
		if p.reportRequest(vm); vm.Err == nil && p.wait {
			w.Open[vm.VM.UID] = &vms.AwaitedVM{VM: vm.VM, Reached: vms.WhenPowered(vm.VM.Generation), Unchanged: vm.Unchanged != ""}
		}
	})
	if err := errors.Join(ctx.Err(), p.awaitChanges(ctx, w)); err != nil {
		return err
	}
	return p.exitError()
}

// changeVM changes one VM, and stores the result in chosen.
func (p *powerOptions) changeVM(ctx context.Context, chosen *vms.SelectedVM) {
	if chosen.Err != nil {
		return
	}
	if chosen.VM.DeletionTimestamp != nil {
		chosen.Err = errDeleting
		return
	}
	change, unchanged, err := p.verb.change(chosen.VM, p.Clock.Now())
	if change == nil || err != nil {
		chosen.Unchanged, chosen.Err = unchanged, err
		return
	}
	patched, err := patchVM(ctx, p.Options, chosen, map[string]any{"spec": change})
	if err != nil {
		chosen.Err = err
		return
	}
	chosen.VM = patched
}

// reportRequest prints the request for one VM, unless awaitChanges prints it later.
func (p *powerOptions) reportRequest(chosen *vms.SelectedVM) {
	switch {
	case chosen.Err != nil:
		p.addFailure(chosen.Name, chosen.Err)
	case chosen.Unchanged != "":
		_, _ = fmt.Fprintf(p.Out, "%s unchanged (%s)\n", p.NameOf(chosen.VM), chosen.Unchanged)
	case !p.wait:
		_, _ = fmt.Fprintf(p.Out, "%s %s\n", p.NameOf(chosen.VM), p.verb.begun)
	}
}

// awaitChanges waits for the VMs, and prints the result of each.
func (p *powerOptions) awaitChanges(ctx context.Context, w *vms.Waiter) error {
	w.Ended = func(awaited *vms.AwaitedVM, err error) {
		switch vm := awaited.VM; {
		case errors.Is(err, vms.ErrTimeout):
			p.failed = true
			w.PrintAbove(p.ErrOut, "error: %s: %s: %s", vm.Name, err, vms.ActivityText(vm))
		case err != nil:
			p.failed = true
			w.PrintAbove(p.ErrOut, "error: %s", vms.DescribeFailure(p.Options, vm.Name, err))
		default:
			if !awaited.Unchanged {
				w.PrintAbove(p.Out, "%s %s", p.NameOf(vm), p.verb.done)
			}
			if text := unappliedText(p.Program, vm); text != "" {
				w.PrintAbove(p.ErrOut, "%s %s", kit.TerminalOf(p.ErrOut).Paint("Warning:", kit.Yellow), text)
			}
		}
	}
	return vms.AwaitVMs(ctx, p.Options, p.timeout, w)
}

// unappliedText says which fields of a VM's spec do not apply, and why.
func unappliedText(program string, vm *api.VirtualMachine) string {
	switch status := &vm.Status; {
	case status.RefusedField != nil:
		return printable.Line(fmt.Sprintf("%s of %s is refused: %s", status.RefusedField.Field, vm.Name, status.RefusedField.Message))
	case len(status.PendingFields) > 0:
		return fmt.Sprintf("%s of %s waits for a restart: %s restart %s", strings.Join(status.PendingFields, ", "), vm.Name, program, vm.Name)
	}
	return ""
}
