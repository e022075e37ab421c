// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// Values of --sort-by.
const (
	sortByCPU    = "cpu"
	sortByMemory = "memory"
	sortByName   = "name"
)

type topOptions struct {
	*kit.Options
	listFlags
	sortBy string
}

// NewTopCommand returns the command top.
func NewTopCommand(o *kit.Options) *cobra.Command {
	t := &topOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "top",
		GroupID: kit.GroupObserve,
		Short:   "Show how much VMs use",
		Long: "Show how much VMs use, those that use most first.\n\n" +
			"CPU is in CPUs, and MEMORY in bytes; both are followed by the size of the VM, and by the share of\n" +
			"it. Drover takes a sample of each server every 30 s (--usage-period), and reports changes of at\n" +
			"least one per cent.",
		Example: o.FormatExamples("top", "top -A --sort-by memory"),
		Args:    kit.RefuseArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.showUsage(cmd.Context()) },
	}
	t.addFlags(cmd)
	cmd.Flags().StringVar(&t.sortBy, "sort-by", sortByCPU, "cpu, memory or name")
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions([]string{sortByCPU, sortByMemory, sortByName}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (t *topOptions) showUsage(ctx context.Context) error {
	if !slices.Contains([]string{sortByCPU, sortByMemory, sortByName}, t.sortBy) {
		return fmt.Errorf("--sort-by %q: allowed are cpu, memory and name", t.sortBy)
	}
	all, err := t.readVMs(ctx, t.Options)
	if err != nil || len(all) == 0 {
		return err
	}
	sortByUsage(all, t.sortBy)
	return t.tableOf(all, topColumns, usageCells).Print(t.Out, kit.TerminalOf(t.Out))
}

// sortByUsage sorts VMs by the usage in a column, the largest first, or by their names.
func sortByUsage(all []api.VirtualMachine, column string) {
	key := func(vm *api.VirtualMachine) float64 {
		u, known := usageOf(vm)
		switch {
		case column == sortByName:
			return 0
		case !known:
			return -1
		case column == sortByMemory:
			return u.bytes
		}
		return u.cpus
	}
	slices.SortStableFunc(all, func(a, b api.VirtualMachine) int {
		return cmp.Or(cmp.Compare(key(&b), key(&a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

var topColumns = []kit.Column{
	{Name: "NAME"},
	{Name: "STATE", DropOrder: 3},
	{Name: "CPU", AlignRight: true, DropOrder: 1},
	{Name: "CPU%", AlignRight: true},
	{Name: "MEMORY", AlignRight: true, DropOrder: 2},
	{Name: "MEM%", AlignRight: true},
}

// usageCells returns the row of a VM.
func usageCells(vm *api.VirtualMachine) []kit.Cell {
	cpuSize, memorySize := vms.SizeText(vm, api.ResourceCPU), vm.Spec.Resource[api.ResourceMemory]
	cpu, cpuShare, memory, memoryShare := vms.NoValue, vms.NoValue, vms.NoValue, vms.NoValue
	if u, known := usageOf(vm); known {
		cpu, cpuShare = strconv.FormatFloat(u.cpus, 'f', 2, 64), percentText(u.cpuPercent)
		memory, memoryShare = bytesText(u.bytes, memorySize), percentText(u.memoryPercent)
	}
	return []kit.Cell{{Text: vm.Name}, vms.StateCell(vm), {Text: cpu + "/" + cpuSize}, {Text: cpuShare}, {Text: memory + "/" + memorySize.String()}, {Text: memoryShare}}
}
