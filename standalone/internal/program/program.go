// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package program has the commands of drover. It does not have the components that drover up runs, so
// that its tests do not link kube-apiserver.
//
// Start with Program.Main. options.go has the flags of drover up. Each other command has a separate
// file.
package program

import (
	"cmp"
	"context"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/standalone/internal/command"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// Program is the program drover.
type Program struct {
	Version string
	// Up runs drover up. flags are the flags of the command, parsed.
	Up func(ctx context.Context, o *UpOptions, flags *pflag.FlagSet) error
}

// Main runs the command of the command line, and returns the exit code.
func (p Program) Main() int {
	root := p.newRootCommand()
	o := newVMOptions()
	vm := newVMCommand(o)
	root.AddCommand(vm)
	out := printable.NewOutput(os.Stdout)
	root.SetOut(printable.NewWriter(out))
	cmd, err := root.ExecuteC()
	if isBelow(cmd, vm) {
		return o.Report(err)
	}
	if err = cmp.Or(err, out.Err()); err == nil {
		return 0
	}
	return command.Report(root.ErrOrStderr(), err)
}

func (p Program) newRootCommand() *cobra.Command {
	// Remove the flags that packages of Kubernetes have registered, since cobra would show them.
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
		Version:       p.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	// Commands print text from tenants, engines and files of other users.
	root.SetOut(printable.NewWriter(os.Stdout))
	root.SetErr(printable.NewWriter(os.Stderr))
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages |", "FlagUsagesWrapped 80 |"))
	root.AddCommand(p.newUpCommand(), newPurgeCommand(), newMachinesCommand(), newKubectlCommand(), newLoginCommand(), p.newVersionCommand())
	root.AddCommand(command.Program{Version: p.Version, Clock: clock.RealClock{}, Settings: settingsOf, AddDataDirFlag: addDataDirFlag}.Commands()...)
	return root
}

// addDataDirFlag adds the flag --data-dir.
func addDataDirFlag(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "data-dir", datadir.Default(os.Getenv, os.Getuid()),
		"folder of all data: /var/lib/drover for root, ~/.local/share/drover for others (also from DROVER_DATA_DIR)")
}

// CloseDir records in the data dir that Drover is not ready any more, and closes the data dir. It returns
// err, the error of the run, or else the error of closing.
func CloseDir(dir *datadir.Dir, err error) error {
	_ = dir.ClearReady()
	if closeErr := dir.Close(); err == nil {
		return closeErr
	}
	return err
}
