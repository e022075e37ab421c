// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command drover is Drover for a host without a cluster: etcd, kube-apiserver
// and the Drover controller in one process.
//
// Start with up.go, which lists the parts that `drover up` runs; each of the other
// commands has its own file.
package main

import (
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/standalone/internal/command"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

func main() {
	root := newRootCommand()
	o := newVMOptions()
	vm := newVMCommand(o)
	useHostCommands(vm)
	root.AddCommand(vm)
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return
	case isBelow(cmd, vm):
		os.Exit(o.Report(err))
	}
	os.Exit(command.Report(os.Stderr, err))
}

func newRootCommand() *cobra.Command {
	// Parts of Kubernetes register flags of their own here, which cobra would show.
	pflag.CommandLine = pflag.NewFlagSet("drover", pflag.ContinueOnError)
	root := &cobra.Command{
		Use:   "drover",
		Short: "Run virtual machines from Kubernetes objects, on this host and without a cluster",
		Long: `Drover runs virtual machines from Kubernetes objects.

"drover up" starts a Kubernetes API on this host, with all it needs in one
process, and runs a server for every VirtualMachine that is applied to it.`,
		Example: `  drover up
  drover kubectl apply -f examples/test-vm.yaml
  drover vm list`,
		Version:       droverVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |", "FlagUsagesWrapped 80 |"))
	root.AddCommand(newUpCommand(), newPurgeCommand(), newMachinesCommand(), newKubectlCommand(), newVersionCommand())
	root.AddCommand(sharedCommands()...)
	return root
}

func sharedCommands() []*cobra.Command {
	return command.Program{Version: droverVersion, Clock: clock.RealClock{}, Settings: settingsOf, AddDataDirFlag: addDataDirFlag}.Commands()
}

// addDataDirFlag is for every command that uses the data dir.
func addDataDirFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "data-dir", datadir.Default(os.Getenv, os.Getuid()),
		"folder of all data (also from DROVER_DATA_DIR)")
}
