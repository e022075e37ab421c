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

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"cloudnative.tw/drover/standalone/internal/datadir"
)

func main() {
	if err := newRootCommand().Execute(); err != nil {
		os.Exit(reportError(os.Stderr, err))
	}
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
  drover kubectl get vms`,
		Version:       droverVersion,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(newUpCommand(), newPurgeCommand(), newImageCommand(), newMachinesCommand(), newStatusCommand(), newDoctorCommand(), newKubectlCommand(), newVersionCommand())
	return root
}

// addDataDirFlag is for every command that uses the data dir.
func addDataDirFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "data-dir", datadir.Default(os.Getenv, os.Getuid()),
		"folder of all data (also from DROVER_DATA_DIR)")
}
