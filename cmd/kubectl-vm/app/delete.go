// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
)

type deleteOptions struct {
	batch
	keepServer, yes bool
	blocked         map[types.UID]string
}

// NewDeleteCommand returns the verb delete.
func NewDeleteCommand(o *Options) *cobra.Command {
	d := &deleteOptions{batch: batch{Options: o}, blocked: map[types.UID]string{}}
	cmd := &cobra.Command{
		Use:     "delete (NAME... | -l SELECTOR | --all)",
		Aliases: []string{"rm"},
		GroupID: groupLifecycle,
		Short:   "Delete VMs with their data, or keep their servers",
		Long: "Delete VMs. Their servers are shut down and removed with their disks and all data, unless\n" +
			"--keep-server leaves them running and no longer managed. What is removed is shown first, and\n" +
			"has to be confirmed: on a terminal, or by --yes.",
		Example: o.formatExamples("delete web", "delete web db --yes", "delete web --keep-server", "delete -l app=web"),
		RunE:    func(cmd *cobra.Command, args []string) error { return d.run(cmd.Context(), args) },

		ValidArgsFunction: completeVMs(o),
	}
	d.addFlags(cmd)
	cmd.Flags().BoolVar(&d.keepServer, "keep-server", false, "release the servers: they go on running, with their data, and Drover no longer manages them")
	cmd.Flags().BoolVarP(&d.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&d.wait, "wait", true, "wait until the VMs are gone")
	cmd.Flags().DurationVar(&d.timeout, "timeout", 0, "how long to wait, 0 without an end")
	return cmd
}

func (d *deleteOptions) run(ctx context.Context, args []string) error {
	if err := d.parseNames(args); err != nil {
		return err
	}
	found, err := d.findVMs(ctx, d.Options)
	if err != nil {
		return err
	}
	found = d.reportMissing(found)
	if len(found) == 0 {
		return d.result()
	}
	if err := d.confirm(ctx, found); err != nil {
		return err
	}
	w := &waiter{open: map[types.UID]*awaited{}}
	forEach(found, func(one *selected) { one.err = d.deleteOne(ctx, one) }, func(one *selected) {
		switch {
		case one.err != nil:
			d.addFailure(one.name, one.err)
		case !d.wait:
			_, _ = fmt.Fprintf(d.Out, "%s deletion requested\n", d.nameOf(one.vm))
		default:
			w.open[one.vm.UID] = &awaited{vm: one.vm, gone: true}
		}
	})
	if err := errors.Join(ctx.Err(), d.awaitDeletion(ctx, w)); err != nil {
		return err
	}
	return d.result()
}

// reportMissing reports VMs that were not found, and returns the others.
func (d *deleteOptions) reportMissing(all []*selected) []*selected {
	var found []*selected
	for _, one := range all {
		if one.err != nil {
			d.addFailure(one.name, one.err)
			continue
		}
		found = append(found, one)
	}
	return found
}

// confirm shows what is removed, and asks.
func (d *deleteOptions) confirm(ctx context.Context, found []*selected) error {
	if d.yes {
		return nil
	}
	d.printRemovals(found)
	return d.askUser(ctx, "Delete "+servers.Count(len(found), "VM")+"?")
}

// printRemovals says of each VM what is removed.
func (d *deleteOptions) printRemovals(found []*selected) {
	s := screenOf(d.ErrOut)
	for _, one := range found {
		name := one.vm.Name
		if d.allNamespaces {
			name = one.vm.Namespace + "/" + name
		}
		name = printable.Line(name)
		lines := printable.Wrap(name+": "+printable.Line(removalText(one.vm, d.keepServer)), max(s.width-2, 0))
		lines[0] = s.paintText(name, bold) + strings.TrimPrefix(lines[0], name)
		_, _ = fmt.Fprintln(d.ErrOut, strings.Join(lines, "\n  "))
	}
}

// removalText says what a deletion removes.
func removalText(vm *api.VirtualMachine, keep bool) string {
	state := "which is " + stateOf(vm).text
	if keep || vm.Spec.DeletionPolicy == api.DeletionRetain {
		return fmt.Sprintf("the VM only; its server, %s, is kept with its data and no longer managed", state)
	}
	what := []string{"the VM and its server, " + state}
	switch driverOf(vm) {
	case "docker":
		what = append(what, "with all that was written in the container")
	default:
		what = append(what, "with its disks and all data on them")
	}
	if disks := disksText(vm); disks != "" {
		what[len(what)-1] += " (" + disks + ")"
	}
	return strings.Join(what, ", ")
}

// disksText names the disks that a deletion removes.
func disksText(vm *api.VirtualMachine) string {
	if driverOf(vm) == "docker" {
		return ""
	}
	var disks []string
	if size, ok := vm.Spec.Resource[api.ResourceRootDisk]; ok {
		disks = append(disks, "root "+size.String())
	}
	for _, v := range vm.Spec.Volumes {
		disks = append(disks, "volume "+v.Name+" "+v.Size.String())
	}
	return strings.Join(disks, ", ")
}

// deleteVM deletes a VM with its data and waits until it is gone. Someone else may have deleted it.
func deleteVM(ctx context.Context, o *Options, vm *api.VirtualMachine) error {
	d := &deleteOptions{batch: batch{Options: o}, blocked: map[types.UID]string{}}
	err := d.deleteOne(ctx, &selected{namespace: vm.Namespace, name: vm.Name, vm: vm})
	if isNotFound(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = d.awaitDeletion(ctx, &waiter{open: map[types.UID]*awaited{vm.UID: {vm: vm, gone: true}}})
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", vm.Name, err)
	}
	return d.result()
}

// deleteOne requests the deletion of the VM that was shown, and of no other one of its name.
func (d *deleteOptions) deleteOne(ctx context.Context, chosen *selected) error {
	client, err := d.VMs(chosen.namespace)
	if err != nil {
		return err
	}
	opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &chosen.vm.UID}}
	if d.keepServer {
		return d.releaseServer(ctx, chosen, opts)
	}
	err = client.Delete(ctx, chosen.name, opts)
	if apierrors.IsConflict(err) {
		return errors.New("it was replaced by another VM of that name meanwhile: nothing was deleted")
	}
	return describeVMError(err, chosen.namespace, chosen.name)
}

// releaseServer deletes a VM whose server is kept. The deletion has the object's version as a
// precondition: if another user takes the policy back in between, nothing is deleted.
func (d *deleteOptions) releaseServer(ctx context.Context, chosen *selected, opts metav1.DeleteOptions) error {
	if chosen.vm.DeletionTimestamp != nil {
		return errDeleting
	}
	client, err := d.VMs(chosen.namespace)
	if err != nil {
		return err
	}
	patch := map[string]any{"metadata": map[string]any{"uid": chosen.vm.UID}, "spec": map[string]any{"deletionPolicy": api.DeletionRetain}}
	return retryOnConflict(func() error {
		kept, err := patchVM(ctx, d.Options, chosen, patch)
		if err != nil {
			return err
		}
		opts.Preconditions.ResourceVersion = &kept.ResourceVersion
		return client.Delete(ctx, chosen.name, opts)
	})
}

// awaitDeletion waits until the VMs are gone.
func (d *deleteOptions) awaitDeletion(ctx context.Context, w *waiter) error {
	ctx, cancel := withTimeout(ctx, d.timeout)
	defer cancel()
	line := newProgressLine(d.ErrOut, d.Clock, w.describe)
	defer line.stop()
	w.seen = func(vm *api.VirtualMachine) {
		if text := blockedText(vm); text != d.blocked[vm.UID] {
			d.blocked[vm.UID] = text
			if text != "" {
				line.printAbove(d.ErrOut, "%s: the deletion waits: %s", vm.Name, text)
			}
		}
	}
	w.ended = func(one *awaited, err error) {
		switch {
		case err != nil:
			d.failed = true
			line.printAbove(d.ErrOut, "error: %s: it is still being deleted: %s", one.vm.Name, d.describeError(err))
		case d.keepServer:
			line.printAbove(d.Out, "%s deleted, its server %s is kept", d.nameOf(one.vm), serverName(one.vm))
		default:
			line.printAbove(d.Out, "%s deleted", d.nameOf(one.vm))
		}
	}
	return awaitVMs(ctx, d.Options, w)
}

// serverName returns the engine's name of a server.
func serverName(vm *api.VirtualMachine) string {
	if s := vm.Status.Server; s != nil && s.ID != "" {
		return servers.ShortID(s.ID) + " on " + driverOf(vm)
	}
	return "on " + driverOf(vm)
}

// blockedText says what blocks a deletion.
func blockedText(vm *api.VirtualMachine) string {
	if c := conditionOf(vm, api.ConditionDeletionBlocked); c.Status == metav1.ConditionTrue {
		return printable.Line(c.Message)
	}
	return ""
}
