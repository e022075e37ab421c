// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/component-base/cli"
	kubectl "k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/standalone/internal/command"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/kubeconfig"
)

func newKubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use:                "kubectl",
		Short:              "kubectl, for machines without one, connected to this Drover",
		DisableFlagParsing: true,
		Run: func(_ *cobra.Command, args []string) {
			useDataDirKubeconfig(args)
			runKubectl(args)
		},
	}
}

// runKubectl does the same as the main function of kubectl. If kubectl fails, it ends the process with
// kubectl's exit code.
func runKubectl(args []string) {
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	command := kubectl.NewDefaultKubectlCommandWithArgs(kubectl.KubectlOptions{
		PluginHandler: kubectl.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     append([]string{"kubectl"}, args...),
		ConfigFlags:   kubectlConfigFlags().WithWarningPrinter(streams),
		IOStreams:     streams,
	})
	command.SetArgs(args)
	if err := cli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
}

// kubectlConfigFlags returns the same flags as the main function of kubectl.
func kubectlConfigFlags() *genericclioptions.ConfigFlags {
	return genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
		WithDiscoveryBurst(300).WithDiscoveryQPS(50.0)
}

// useDataDirKubeconfig points kubectl at this Drover unless the user chose another
// kubeconfig.
func useDataDirKubeconfig(args []string) {
	if slices.ContainsFunc(args, isKubeconfigFlag) {
		return
	}
	path, err := defaultKubeconfig()
	if err == nil && path != "" {
		err = os.Setenv("KUBECONFIG", path)
	}
	if err != nil {
		os.Exit(command.Report(printable.NewWriter(os.Stderr), err))
	}
}

// defaultKubeconfig returns the kubeconfig of this Drover, or "" if KUBECONFIG names a
// kubeconfig. A user without a data dir logs in at the service of the host. It never falls back to
// ~/.kube/config: a command for a Drover that does not run must not reach another cluster.
func defaultKubeconfig() (string, error) {
	dir := datadir.Layout(datadir.Default(os.Getenv, os.Getuid()))
	bypassProxy(dir) // in any case, since KUBECONFIG may name the file of this Drover, as drover up advises
	if os.Getenv("KUBECONFIG") != "" {
		return "", nil
	}
	path := dir.Kubeconfig()
	_, err := os.Stat(path)
	if err == nil && os.Geteuid() == 0 {
		// The process stays root, since it must read the files that the command line names.
		path, err = kubeconfig.ForRoot(path)
	}
	if err == nil {
		return path, nil
	}
	if os.Geteuid() == 0 && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if c := newLoginClient(); c.IsDefault(os.Getenv) {
		return c.PersonalKubeconfig()
	}
	_, _ = fmt.Fprintf(printable.NewWriter(os.Stderr), "drover: no kubeconfig yet (%v): run drover up first, or set KUBECONFIG or DROVER_DATA_DIR\n", err)
	if os.Geteuid() == 0 {
		return os.DevNull, nil // Before root reads the missing file, another user could create it.
	}
	return path, nil
}

func isKubeconfigFlag(arg string) bool {
	return arg == "--kubeconfig" || strings.HasPrefix(arg, "--kubeconfig=")
}
