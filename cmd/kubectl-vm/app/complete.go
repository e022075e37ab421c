// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// completionTimeout is how long a completion may ask the API server. A shell that hangs is worse
// than one that proposes nothing.
const completionTimeout = 3 * time.Second

// completeVMs returns a completion that proposes the VMs of the namespace which are not named yet.
func completeVMs(o *Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := completionContext(cmd)
		defer cancel()
		namespace, err := o.Namespace()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		all, _ := listForTable(ctx, o, namespace, metav1.ListOptions{}) // a completion cannot show an error
		var names []string
		for i := range all {
			if name := all[i].Name; !slices.Contains(args, name) {
				names = append(names, name+"\t"+stateOf(&all[i]).text)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeVM returns a completion that proposes the VMs of the namespace as the first argument.
func completeVM(o *Options) cobra.CompletionFunc {
	complete := completeVMs(o)
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, prefix)
	}
}

func completionContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), completionTimeout)
}

// completeContexts returns a completion that proposes the contexts of the kubeconfig.
func completeContexts(o *Options) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := o.Contexts() // a completion cannot show an error
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces returns a completion that proposes the namespaces of the cluster.
func completeNamespaces(o *Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := completionContext(cmd)
		defer cancel()
		core, err := o.Core()
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list := &corev1.NamespaceList{}
		if err := core.Get().Resource("namespaces").Do(ctx).Into(list); err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		names := make([]string, len(list.Items))
		for i := range list.Items {
			names[i] = list.Items[i].Name
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}
