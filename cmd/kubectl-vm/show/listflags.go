// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package show

import (
	"context"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// listFlags are the flags of the verbs that print a table of VMs.
type listFlags struct {
	allNamespaces bool
	selector      string
	noHeaders     bool
}

func (f *listFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&f.allNamespaces, "all-namespaces", "A", false, "the VMs of all namespaces")
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "only VMs with these labels, for example app=web")
	cmd.Flags().BoolVar(&f.noHeaders, "no-headers", false, "print no header")
}

// readVMs returns the VMs that the flags select. If there are none, it prints a note.
func (f *listFlags) readVMs(ctx context.Context, o *kit.Options) ([]api.VirtualMachine, error) {
	namespace, err := o.NamespaceOrAll(f.allNamespaces)
	if err != nil {
		return nil, err
	}
	all, err := vms.ListForTable(ctx, o, namespace, metav1.ListOptions{LabelSelector: f.selector})
	if err == nil && len(all) == 0 {
		vms.PrintNothingFound(o.ErrOut, namespace, f.selector)
	}
	return all, err
}

// tableOf returns a table with a row for each VM, and with a column of namespaces for --all-namespaces.
func (f *listFlags) tableOf(all []api.VirtualMachine, columns []kit.Column, cellsOf func(vm *api.VirtualMachine) []kit.Cell) *kit.Table {
	t := &kit.Table{Columns: columns, NoHeaders: f.noHeaders}
	if f.allNamespaces {
		t.Columns = append([]kit.Column{{Name: "NAMESPACE"}}, columns...)
	}
	for i := range all {
		cells := cellsOf(&all[i])
		if f.allNamespaces {
			cells = append([]kit.Cell{{Text: all[i].Namespace}}, cells...)
		}
		t.AddRow(cells...)
	}
	return t
}
