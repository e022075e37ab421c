// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// completionTimeout is how long a completion may ask the API server. A shell that hangs is worse
// than one that proposes nothing.
const completionTimeout = 3 * time.Second

// knownDrivers are the drivers of this version. A cluster may have others.
var knownDrivers = []string{"docker", "qemu", "pod", "fake"}

// CompleteVMs proposes the VMs of the namespace that are not named yet.
func (o *Options) CompleteVMs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := completionContext(cmd)
	defer cancel()
	namespace, err := o.Namespace()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	vms, _ := o.listForTable(ctx, namespace, metav1.ListOptions{}) // a completion cannot show an error
	var names []string
	for i := range vms {
		if name := vms[i].Name; !slices.Contains(args, name) {
			names = append(names, name+"\t"+stateOf(&vms[i]).text)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// CompleteVM proposes the VMs of the namespace as the first argument.
func (o *Options) CompleteVM(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return o.CompleteVMs(cmd, args, prefix)
}

func completionContext(cmd *cobra.Command) (context.Context, context.CancelFunc) {
	return context.WithTimeout(cmd.Context(), completionTimeout)
}

// completeContexts proposes the contexts of the kubeconfig.
func (o *Options) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	o.useDefaultKubeconfig()
	config, err := o.Config.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return slices.Sorted(maps.Keys(config.Contexts)), cobra.ShellCompDirectiveNoFileComp
}

// completeNamespaces proposes the namespaces of the cluster.
func (o *Options) completeNamespaces(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
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
