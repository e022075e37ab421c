// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"cloudnative.tw/drover/cmd/kubectl-vm/admin"
	"cloudnative.tw/drover/cmd/kubectl-vm/change"
	"cloudnative.tw/drover/cmd/kubectl-vm/connect"
	"cloudnative.tw/drover/cmd/kubectl-vm/create"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/show"
)

// Main runs the program and returns its exit code. The first argument is the name of the program.
func Main(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	o := kit.NewOptions(streams)
	if len(args) > 1 && filepath.Base(args[0]) == droverName && args[1] == droverVerb {
		actAsDrover(o, args[0])
		args = args[1:]
	} else {
		o.DefaultKubeconfig = func() (string, error) { return findLoginKubeconfig(o) }
	}
	cmd := NewCommand(o) //nolint:contextcheck // cobra passes ctx on to the verbs
	cmd.Version = kit.Version
	cmd.SetVersionTemplate(fmt.Sprintf("kubectl-vm %s (%s, %s/%s)\n", kit.Version, runtime.Version(), runtime.GOOS, runtime.GOARCH))
	cmd.Flags().Bool("version", false, "print the version of this program") // without -v, the verbosity of kubectl
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(newCompletionCommand(o))
	cmd.SetArgs(args[1:])
	if strings.HasPrefix(filepath.Base(args[0]), completerPrefix) {
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args[1:]...))
	}
	return o.Report(cmd.ExecuteContext(ctx))
}

// completerPrefix is the prefix of the name by which kubectl calls this program to complete the
// arguments of `kubectl vm`.
const completerPrefix = "kubectl_complete-"

// NewCommand returns the command with all verbs. The caller prints its error with Options.Report.
func NewCommand(o *kit.Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:          "kubectl-vm",
		Short:        "Use virtual machines",
		Long:         "Create, watch and use the virtual machines that Drover runs from VirtualMachine objects.",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: o.Program},
		SilenceUsage: true, SilenceErrors: true,
		SuggestionsMinimumDistance: 2,

		Args: kit.RefuseUnknownVerb,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },

		PersistentPreRun: func(cmd *cobra.Command, _ []string) { repeatFlags(o, cmd.Flags()) },
	}
	cmd.SetIn(o.In)
	cmd.SetOut(o.Out)
	cmd.SetErr(o.ErrOut)
	o.Config.AddFlags(cmd.PersistentFlags())
	setUsage(o, cmd)
	cmd.AddGroup(
		&cobra.Group{ID: kit.GroupLifecycle, Title: "Create and change:"},
		&cobra.Group{ID: kit.GroupObserve, Title: "Observe:"},
		&cobra.Group{ID: kit.GroupConnect, Title: "Connect:"},
		&cobra.Group{ID: kit.GroupAdmin, Title: "Clear up, as an administrator:"},
	)
	cmd.AddCommand(newVerbs(o)...)
	cmd.AddCommand(newOptionsCommand(o))
	_ = cmd.RegisterFlagCompletionFunc("namespace", completeNamespaces(o))
	_ = cmd.RegisterFlagCompletionFunc("context", completeContexts(o))
	return cmd
}

// repeatFlags adds the flags that name the cluster and the namespace to the commands that are printed for
// users, so that these commands are about the same VM.
func repeatFlags(o *kit.Options, flags *pflag.FlagSet) {
	for _, name := range []string{"kubeconfig", "context", "namespace"} {
		if f := flags.Lookup(name); f != nil && f.Changed {
			flag := " --" + name + " " + printable.ShellWord(f.Value.String())
			o.Program, o.Kubectl = o.Program+flag, o.Kubectl+flag
		}
	}
}

// newVerbs returns the verbs, in the order of the help.
func newVerbs(o *kit.Options) []*cobra.Command {
	return slices.Concat([]*cobra.Command{create.NewCreateCommand(o), create.NewRunCommand(o)}, change.NewPowerCommands(o), []*cobra.Command{
		change.NewResizeCommand(o), change.NewPortCommand(o), change.NewDeleteCommand(o),
		show.NewListCommand(o), show.NewShowCommand(o), show.NewTopCommand(o), show.NewExplainCommand(o), admin.NewDoctorCommand(o),
		connect.NewConsoleCommand(o), connect.NewLogsCommand(o), connect.NewExecCommand(o), connect.NewIPCommand(o),
		connect.NewSSHCommand(o), connect.NewCopyCommand(o), connect.NewPortForwardCommand(o),
		admin.NewOrphansCommand(o), admin.NewRetainedCommand(o),
	})
}
