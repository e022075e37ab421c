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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	allNamespaces bool
	selector      string
	sortBy        string
	noHeaders     bool
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
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.run(cmd.Context()) },
	}
	addListFlags(cmd, &t.allNamespaces, &t.selector)
	cmd.Flags().StringVar(&t.sortBy, "sort-by", sortByCPU, "cpu, memory or name")
	cmd.Flags().BoolVar(&t.noHeaders, "no-headers", false, "print no header")
	_ = cmd.RegisterFlagCompletionFunc("sort-by", cobra.FixedCompletions([]string{sortByCPU, sortByMemory, sortByName}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (t *topOptions) run(ctx context.Context) error {
	if !slices.Contains([]string{sortByCPU, sortByMemory, sortByName}, t.sortBy) {
		return fmt.Errorf("--sort-by %q: allowed are cpu, memory and name", t.sortBy)
	}
	namespace, err := t.namespaceOf(t.allNamespaces)
	if err != nil {
		return err
	}
	vms, err := t.listForTable(ctx, namespace, metav1.ListOptions{LabelSelector: t.selector})
	if err != nil {
		return err
	}
	if len(vms) == 0 {
		t.printNothingFound(namespace, t.selector)
		return nil
	}
	return t.table(vms).write(t.Out, screenOf(t.Out))
}

// table returns the VMs in their order.
func (t *topOptions) table(vms []api.VirtualMachine) *table {
	t.sort(vms)
	out := &table{columns: t.columns(), noHeaders: t.noHeaders}
	for i := range vms {
		out.addRow(t.row(&vms[i])...)
	}
	return out
}

func (t *topOptions) sort(vms []api.VirtualMachine) {
	key := func(vm *api.VirtualMachine) float64 {
		u, known := usageOf(vm)
		switch {
		case t.sortBy == sortByName:
			return 0
		case !known:
			return -1
		case t.sortBy == sortByMemory:
			return u.bytes
		}
		return u.cpus
	}
	slices.SortStableFunc(vms, func(a, b api.VirtualMachine) int {
		return cmp.Or(cmp.Compare(key(&b), key(&a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (t *topOptions) columns() []column {
	columns := []column{
		{name: "NAME"},
		{name: "STATE", expendable: 3},
		{name: "CPU", right: true, expendable: 1},
		{name: "CPU%", right: true},
		{name: "MEMORY", right: true, expendable: 2},
		{name: "MEM%", right: true},
	}
	if t.allNamespaces {
		columns = append([]column{{name: "NAMESPACE"}}, columns...)
	}
	return columns
}

func (t *topOptions) row(vm *api.VirtualMachine) []cell {
	hasCPU, memory := sizeText(vm, api.ResourceCPU), vm.Spec.Resource[api.ResourceMemory]
	cpu, cpuShare, used, share := none+"/"+hasCPU, none, none+"/"+memory.String(), none
	if u, known := usageOf(vm); known {
		cpu, cpuShare = strconv.FormatFloat(u.cpus, 'f', 2, 64)+"/"+hasCPU, percentText(u.cpuPercent)
		used, share = bytesText(u.bytes, memory)+"/"+memory.String(), percentText(u.memoryPercent)
	}
	row := []cell{{text: vm.Name}, stateOf(vm), {text: cpu}, {text: cpuShare}, {text: used}, {text: share}}
	if t.allNamespaces {
		row = append([]cell{{text: vm.Namespace}}, row...)
	}
	return row
}
