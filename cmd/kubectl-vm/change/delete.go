// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/servers"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

type deleteOptions struct {
	batch
	keepServer, yes bool
	blocked         map[types.UID]string
}

// NewDeleteCommand returns the command delete.
func NewDeleteCommand(o *kit.Options) *cobra.Command {
	d := &deleteOptions{batch: batch{Options: o}, blocked: map[types.UID]string{}}
	cmd := &cobra.Command{
		Use:     "delete (NAME... | -l SELECTOR | --all)",
		Aliases: []string{"rm"},
		GroupID: kit.GroupLifecycle,
		Short:   "Delete VMs with their data, or keep their servers",
		Long: "Delete VMs. Their servers are shut down and removed with their disks and all data, unless\n" +
			"--keep-server leaves them running and no longer managed. What is removed is shown first, and\n" +
			"has to be confirmed: on a terminal, or by --yes.",
		Example: o.FormatExamples("delete web", "delete web db --yes", "delete web --keep-server", "delete -l app=web"),
		RunE:    func(cmd *cobra.Command, args []string) error { return d.deleteVMs(cmd.Context(), args) },

		ValidArgsFunction: vms.CompleteVMs(o),
	}
	d.AddFlags(cmd)
	cmd.Flags().BoolVar(&d.keepServer, "keep-server", false, "release the servers: they go on running, with their data, and Drover no longer manages them")
	cmd.Flags().BoolVarP(&d.yes, "yes", "y", false, "do not ask")
	cmd.Flags().BoolVar(&d.wait, "wait", true, "wait until the VMs are gone")
	cmd.Flags().DurationVar(&d.timeout, "timeout", 0, "how long to wait; 0 means no limit")
	return cmd
}

func (d *deleteOptions) deleteVMs(ctx context.Context, args []string) error {
	if err := d.ParseNames(args); err != nil {
		return err
	}
	found, err := d.FindVMs(ctx, d.Options)
	if err != nil {
		return err
	}
	found = d.reportMissing(found)
	if len(found) == 0 {
		return d.exitError()
	}
	if err := d.confirmDeletion(ctx, found); err != nil {
		return err
	}
	w := &vms.Waiter{Open: map[types.UID]*vms.AwaitedVM{}}
	vms.ForEach(found, func(vm *vms.SelectedVM) { vm.Err = d.requestDeletion(ctx, vm) }, func(vm *vms.SelectedVM) {
		switch {
		case vm.Err != nil:
			d.addFailure(vm.Name, vm.Err)
		case !d.wait:
			_, _ = fmt.Fprintf(d.Out, "%s deletion requested\n", d.NameOf(vm.VM))
		default:
			w.Open[vm.VM.UID] = &vms.AwaitedVM{VM: vm.VM, UntilDeleted: true}
		}
	})
	if err := errors.Join(ctx.Err(), d.awaitDeletion(ctx, w)); err != nil {
		return err
	}
	return d.exitError()
}

// reportMissing reports VMs that were not found, and returns the others.
func (d *deleteOptions) reportMissing(all []*vms.SelectedVM) []*vms.SelectedVM {
	var found []*vms.SelectedVM
	for _, selected := range all {
		if selected.Err != nil {
			d.addFailure(selected.Name, selected.Err)
			continue
		}
		found = append(found, selected)
	}
	return found
}

// confirmDeletion prints what the deletion removes, and asks the user to confirm it.
func (d *deleteOptions) confirmDeletion(ctx context.Context, found []*vms.SelectedVM) error {
	if d.yes {
		return nil
	}
	printRemovals(d.ErrOut, found, d.AllNamespaces, d.keepServer)
	return d.AskUser(ctx, "Delete "+servers.Count(len(found), "VM")+"?")
}

// printRemovals prints for each VM what the deletion removes.
func printRemovals(errOut io.Writer, found []*vms.SelectedVM, allNamespaces, keepServers bool) {
	s := kit.TerminalOf(errOut)
	for _, selected := range found {
		name := selected.VM.Name
		if allNamespaces {
			name = selected.VM.Namespace + "/" + name
		}
		name = printable.Line(name)
		lines := printable.Wrap(name+": "+printable.Line(removalText(selected.VM, keepServers)), max(s.Width-2, 0))
		lines[0] = s.Paint(name, kit.Bold) + strings.TrimPrefix(lines[0], name)
		_, _ = fmt.Fprintln(errOut, strings.Join(lines, "\n  "))
	}
}

// removalText says what a deletion removes.
func removalText(vm *api.VirtualMachine, keepServer bool) string {
	state := "which is " + vms.StateCell(vm).Text
	if keepServer || vm.Spec.DeletionPolicy == api.DeletionRetain {
		return fmt.Sprintf("the VM only; its server, %s, is kept with its data and no longer managed", state)
	}
	removed := []string{"the VM and its server, " + state}
	switch vms.DriverOf(vm) {
	case "docker":
		removed = append(removed, "with everything that was written in the container")
	default:
		removed = append(removed, "with its disks and all data on them")
	}
	if disks := disksText(vm); disks != "" {
		removed[len(removed)-1] += " (" + disks + ")"
	}
	return strings.Join(removed, ", ")
}

// disksText names the disks that a deletion removes.
func disksText(vm *api.VirtualMachine) string {
	if vms.DriverOf(vm) == "docker" {
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

// DeleteVM deletes a VM with its data and waits until it is gone. It succeeds if someone else has deleted the VM.
func DeleteVM(ctx context.Context, o *kit.Options, vm *api.VirtualMachine) error {
	d := &deleteOptions{batch: batch{Options: o}, blocked: map[types.UID]string{}}
	err := d.requestDeletion(ctx, &vms.SelectedVM{Namespace: vm.Namespace, Name: vm.Name, VM: vm})
	if vms.IsNotFound(err) || apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		err = d.awaitDeletion(ctx, &vms.Waiter{Open: map[types.UID]*vms.AwaitedVM{vm.UID: {VM: vm, UntilDeleted: true}}})
	}
	if err != nil {
		return fmt.Errorf("delete %s: %w", vm.Name, err)
	}
	return d.exitError()
}

// requestDeletion requests the deletion of a VM. The UID is a precondition, so that a new VM with the same name is not
// deleted without having been shown to the user.
func (d *deleteOptions) requestDeletion(ctx context.Context, chosen *vms.SelectedVM) error {
	client, err := d.VMs(chosen.Namespace)
	if err != nil {
		return err
	}
	opts := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &chosen.VM.UID}}
	if d.keepServer {
		return d.releaseServer(ctx, chosen, opts)
	}
	err = client.Delete(ctx, chosen.Name, opts)
	if apierrors.IsConflict(err) {
		return errors.New("nothing was deleted: another VM has replaced the VM under its name")
	}
	return vms.WrapNotFound(err, chosen.Namespace, chosen.Name)
}

// releaseServer sets deletionPolicy Retain and deletes the VM. The deletion has the object's version as
// a precondition, so that nothing is deleted if another user has changed the policy again.
func (d *deleteOptions) releaseServer(ctx context.Context, chosen *vms.SelectedVM, opts metav1.DeleteOptions) error {
	if chosen.VM.DeletionTimestamp != nil {
		return errDeleting
	}
	client, err := d.VMs(chosen.Namespace)
	if err != nil {
		return err
	}
	patch := map[string]any{"metadata": map[string]any{"uid": chosen.VM.UID}, "spec": map[string]any{"deletionPolicy": api.DeletionRetain}}
	return retryOnConflict(func() error {
		kept, err := patchVM(ctx, d.Options, chosen, patch)
		if err != nil {
			return err
		}
		opts.Preconditions.ResourceVersion = &kept.ResourceVersion
		return client.Delete(ctx, chosen.Name, opts)
	})
}

// awaitDeletion waits until the VMs are gone.
func (d *deleteOptions) awaitDeletion(ctx context.Context, w *vms.Waiter) error {
	w.Seen = func(vm *api.VirtualMachine) {
		if text := blockedText(vm); text != d.blocked[vm.UID] {
			d.blocked[vm.UID] = text
			if text != "" {
				w.PrintAbove(d.ErrOut, "%s: the deletion waits: %s", vm.Name, text)
			}
		}
	}
	w.Ended = func(awaited *vms.AwaitedVM, err error) {
		switch vm := awaited.VM; {
		case err != nil:
			d.failed = true
			w.PrintAbove(d.ErrOut, "error: %s is still being deleted: %s", vm.Name, d.DescribeError(err))
		case d.keepServer:
			w.PrintAbove(d.Out, "%s deleted, its server %s is kept", d.NameOf(vm), serverName(vm))
		default:
			w.PrintAbove(d.Out, "%s deleted", d.NameOf(vm))
		}
	}
	return vms.AwaitVMs(ctx, d.Options, d.timeout, w)
}

// serverName returns the ID of a server and its driver.
func serverName(vm *api.VirtualMachine) string {
	if s := vm.Status.Server; s != nil && s.ID != "" {
		return servers.ShortID(s.ID) + " on " + vms.DriverOf(vm)
	}
	return "on " + vms.DriverOf(vm)
}

// blockedText says what blocks a deletion, or "" if nothing does.
func blockedText(vm *api.VirtualMachine) string {
	if c := vms.ConditionOf(vm, api.ConditionDeletionBlocked); c.Status == metav1.ConditionTrue {
		return printable.Line(c.Message)
	}
	return ""
}
