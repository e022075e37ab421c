// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/spec"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

type resizeOptions struct {
	changeOptions
	cpu, memory, disk string
}

// NewResizeCommand returns the command resize.
func NewResizeCommand(o *kit.Options) *cobra.Command {
	r := &resizeOptions{changeOptions: changeOptions{Options: o}}
	cmd := &cobra.Command{
		Use:     "resize NAME [--cpu N] [--memory SIZE] [--disk SIZE]",
		GroupID: kit.GroupLifecycle,
		Short:   "Change the CPUs, the memory or the root disk of a VM",
		Long: "Change the CPUs, the memory or the root disk of a VM, and say which change applies at once and which waits\n" +
			"for a restart: docker applies CPUs and memory at once, qemu at the next restart. A disk can only\n" +
			"grow; under docker its size means nothing.",
		Example: o.FormatExamples("resize web --cpu 4", "resize web --cpu 4 --memory 8G --disk 80G"),
		Args:    kit.RequireOneName,
		RunE:    func(cmd *cobra.Command, args []string) error { return r.resizeVM(cmd.Context(), args[0]) },

		ValidArgsFunction: vms.CompleteVM(o),
	}
	cmd.Flags().StringVar(&r.cpu, "cpu", "", "number of CPUs, for example 2 or 500m")
	cmd.Flags().StringVar(&r.memory, "memory", "", "memory, for example 4G or 512Mi")
	cmd.Flags().StringVar(&r.disk, "disk", "", "size of the root disk, for example 40G")
	r.addFlags(cmd)
	for _, name := range []string{"cpu", "memory", "disk"} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.NoFileCompletions)
	}
	return cmd
}

func (r *resizeOptions) resizeVM(ctx context.Context, name string) error {
	flags := spec.Flags{CPU: r.cpu, Memory: r.memory, Disk: r.disk}
	size, err := flags.ParseSize()
	switch {
	case err != nil:
		return err
	case len(size) == 0:
		return errors.New("nothing to change: give --cpu, --memory or --disk")
	}
	return r.changeVM(ctx, name, "resized", func(vm *api.VirtualMachine) (*specChange, error) { return sizeChange(vm, size), nil })
}

// sizeChange returns the change of spec.resource to size.
func sizeChange(vm *api.VirtualMachine, size corev1.ResourceList) *specChange {
	change := &specChange{}
	resources := map[string]any{}
	for _, name := range []corev1.ResourceName{api.ResourceCPU, api.ResourceMemory, api.ResourceRootDisk} {
		want, asked := size[name]
		have, found := vm.Spec.Resource[name]
		if !asked || (found && have.Cmp(want) == 0) {
			continue
		}
		resources[string(name)] = want.String()
		before := "default"
		if found {
			before = vms.QuantityText(name, have)
		}
		change.fields = append(change.fields, changedField{
			path: "resource." + string(name), text: fmt.Sprintf("%s %s -> %s", name, before, vms.QuantityText(name, want)),
		})
	}
	change.patch = map[string]any{"resource": resources}
	return change
}
