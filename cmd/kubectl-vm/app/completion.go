// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
)

// newCompletionCommand returns the command completion.
func newCompletionCommand(o *kit.Options) *cobra.Command {
	return &cobra.Command{
		Use:   "completion (bash | zsh | fish)",
		Short: "Print a script that completes verbs, flags and VMs in a shell",
		Long: `Print a script that completes verbs, flags and the names of VMs in a shell, for kubectl-vm as a
		separate program:

  source <(kubectl-vm completion bash)
  kubectl-vm completion zsh > "${fpath[1]}/_kubectl-vm"
  kubectl-vm completion fish > ~/.config/fish/completions/kubectl-vm.fish

For "kubectl vm", the completion of kubectl asks a program with the name kubectl_complete-vm, which
is this one under another name:

  ln -s "$(command -v kubectl-vm)" "$(dirname "$(command -v kubectl-vm)")/kubectl_complete-vm"`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one shell: bash, zsh or fish")
			}
			return nil
		},
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(o.Out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(o.Out)
			case "fish":
				return cmd.Root().GenFishCompletion(o.Out, true)
			}
			return fmt.Errorf("shell %q: allowed are bash, zsh and fish", args[0])
		},
	}
}

// completeContexts returns a completion that proposes the contexts of the kubeconfig.
func completeContexts(o *kit.Options) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		names, _ := o.Contexts() // a completion cannot show an error
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNamespaces returns a completion that proposes the namespaces of the cluster.
func completeNamespaces(o *kit.Options) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := kit.NewCompletionContext(cmd)
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
