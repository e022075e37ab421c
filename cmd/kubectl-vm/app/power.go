// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

type powerOptions struct {
	batch
	verb powerVerb
}

// NewPowerCommands returns the verbs that change the power state: start, stop and so on.
func NewPowerCommands(o *Options) []*cobra.Command {
	all := make([]*cobra.Command, len(powerVerbs))
	for i, verb := range powerVerbs {
		all[i] = newPowerCommand(o, verb)
	}
	return all
}

func newPowerCommand(o *Options, verb powerVerb) *cobra.Command {
	p := &powerOptions{batch: batch{Options: o}, verb: verb}
	cmd := &cobra.Command{
		Use:     verb.name + " (NAME... | -l SELECTOR | --all)",
		GroupID: groupLifecycle,
		Short:   verb.short,
		Long:    verb.short + ".\n\n" + verb.long,
		Example: o.formatExamples(verb.examples...),
		RunE:    func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), args) },

		ValidArgsFunction: completeVMs(o),
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
	patched, err := patchVM(ctx, p.Options, chosen, map[string]any{"spec": change})
	if err != nil {
		chosen.err = err
		return
	}
	chosen.vm = patched
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
	line := newProgressLine(p.ErrOut, p.Clock, w.describe)
	defer line.stop()
	w.ended = func(one *awaited, err error) {
		switch {
		case errors.Is(err, errTimeout):
			p.failed = true
			line.printAbove(p.ErrOut, "error: %s: %s: %s", one.vm.Name, err, activityOf(one.vm))
		case err != nil:
			p.failed = true
			line.printAbove(p.ErrOut, "error: %s", describeFor(p.Options, one.vm.Name, err))
		default:
			if !one.unchanged {
				line.printAbove(p.Out, "%s %s", p.nameOf(one.vm), p.verb.done)
			}
			if text := unappliedText(p.Program, one.vm); text != "" {
				line.printAbove(p.ErrOut, "%s %s", screenOf(p.ErrOut).paintText("Warning:", yellow), text)
			}
		}
	}
	return awaitVMs(ctx, p.Options, w)
}

// unappliedText says what of a VM's spec does not apply yet.
func unappliedText(program string, vm *api.VirtualMachine) string {
	switch status := &vm.Status; {
	case status.RefusedField != nil:
		return printable.Line(fmt.Sprintf("%s of %s is refused: %s", status.RefusedField.Field, vm.Name, status.RefusedField.Message))
	case len(status.PendingFields) > 0:
		return fmt.Sprintf("%s of %s waits for a restart: %s restart %s", strings.Join(status.PendingFields, ", "), vm.Name, program, vm.Name)
	}
	return ""
}
