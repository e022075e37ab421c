// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// Values of --sort-by.
const (
	sortByCPU    = "cpu"
	sortByMemory = "memory"
	sortByName   = "name"
)

type topOptions struct {
	*Options
	listFlags
	sortBy string
}

// NewTopCommand returns the verb top.
func NewTopCommand(o *Options) *cobra.Command {
	t := &topOptions{Options: o}
	cmd := &cobra.Command{
		Use:     "top",
		GroupID: groupObserve,
		Short:   "Show how much VMs use",
		Long: "Show how much VMs use, those that use most first.\n\n" +
			"CPU is in CPUs, and MEMORY in bytes; both are followed by the size of the VM, and by the share of\n" +
			"it. Drover takes a sample of each server every 30 s (--usage-period), and reports changes of at\n" +
			"least one per cent.",
		Example: o.formatExamples("top", "top -A --sort-by memory"),
		Args:    refuseArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) },
	}
	t.addFlags(cmd)
	cmd.Flags().StringVar(&t.sortBy, "sort-by", sortByCPU, "cpu, memory or name")
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions([]string{sortByCPU, sortByMemory, sortByName}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (t *topOptions) run(ctx context.Context) error {
	if !slices.Contains([]string{sortByCPU, sortByMemory, sortByName}, t.sortBy) {
		return fmt.Errorf("--sort-by %q: allowed are cpu, memory and name", t.sortBy)
	}
	all, err := t.readVMs(ctx, t.Options)
	if err != nil || len(all) == 0 {
		return err
	}
	sortByUsage(all, t.sortBy)
	return t.tableOf(all, topColumns, usageCells).write(t.Out, screenOf(t.Out))
}

// sortByUsage sorts VMs, those that use most first, or by their names.
func sortByUsage(all []api.VirtualMachine, by string) {
	key := func(vm *api.VirtualMachine) float64 {
		u, known := usageOf(vm)
		switch {
		case by == sortByName:
			return 0
		case !known:
			return -1
		case by == sortByMemory:
			return u.bytes
		}
		return u.cpus
	}
	slices.SortStableFunc(all, func(a, b api.VirtualMachine) int {
		return cmp.Or(cmp.Compare(key(&b), key(&a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

var topColumns = []column{
	{name: "NAME"},
	{name: "STATE", expendable: 3},
	{name: "CPU", right: true, expendable: 1},
	{name: "CPU%", right: true},
	{name: "MEMORY", right: true, expendable: 2},
	{name: "MEM%", right: true},
}

// usageCells returns the row of a VM.
func usageCells(vm *api.VirtualMachine) []cell {
	hasCPU, memory := sizeText(vm, api.ResourceCPU), vm.Spec.Resource[api.ResourceMemory]
	cpu, cpuShare, used, share := none+"/"+hasCPU, none, none+"/"+memory.String(), none
	if u, known := usageOf(vm); known {
		cpu, cpuShare = strconv.FormatFloat(u.cpus, 'f', 2, 64)+"/"+hasCPU, percentText(u.cpuPercent)
		used, share = bytesText(u.bytes, memory)+"/"+memory.String(), percentText(u.memoryPercent)
	}
	return []cell{{text: vm.Name}, stateOf(vm), {text: cpu}, {text: cpuShare}, {text: used}, {text: share}}
}
