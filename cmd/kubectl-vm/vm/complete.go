// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// CompleteVMs returns a completion that proposes the VMs of the namespace that are not arguments yet.
func CompleteVMs(o *kit.Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := kit.NewCompletionContext(cmd)
		defer cancel()
		namespace, err := o.Namespace()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := ListForTable(ctx, o, namespace, metav1.ListOptions{}) // a completion cannot show an error
		var names []string
		for i := range all {
			if name := all[i].Name; !slices.Contains(args, name) {
				names = append(names, name+"\t"+StateCell(&all[i]).Text)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// CompleteVM returns a completion that proposes the VMs of the namespace as the first argument.
func CompleteVM(o *kit.Options) cobra.CompletionFunc {
	complete := CompleteVMs(o)
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, prefix)
	}
}
