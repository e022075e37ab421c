// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"os"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"cloudnative.tw/drover/cmd/kubectl-vm/app"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/signals"
)

// newVMOptions returns the options of the verbs of drover vm. They differ from the options of
// kubectl vm in the default cluster, which is this Drover, and in the commands for help and advice.
func newVMOptions() *kit.Options {
	o := kit.NewOptions(genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr})
	if self, err := os.Executable(); err == nil { // after an error, package connect finds the program itself
		o.Self = []string{self, "vm"}
	}
	o.Program, o.Kubectl, o.DefaultKubeconfig = "drover vm", "drover kubectl", defaultKubeconfig
	return o
}

// newVMCommand returns a command with the verbs of kubectl vm, for hosts without kubectl. Program.Main prints
// its errors as kubectl vm does.
func newVMCommand(o *kit.Options) *cobra.Command {
	cmd := app.NewCommand(o)
	cmd.Use, cmd.Short = "vm", "Use virtual machines: create, list, start, stop and so on"
	prepare := cmd.PersistentPreRun
	cmd.PersistentPreRun = func(cmd *cobra.Command, args []string) {
		prepare(cmd, args)
		cmd.SetContext(signals.StopContext(cmd.Context()))
	}
	return cmd
}

// isBelow reports whether cmd is parent, or one of its subcommands.
func isBelow(cmd, parent *cobra.Command) bool {
	for ; cmd != nil; cmd = cmd.Parent() {
		if cmd == parent {
			return true
		}
	}
	return false
}
