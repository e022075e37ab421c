// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Groups of verbs in the help.
const (
	groupLifecycle = "lifecycle"
	groupObserve   = "observe"
	groupConnect   = "connect"
)

// Main runs the program with its arguments, the first of which is its own name, and returns
// its exit code.
func Main(ctx context.Context, args []string, streams genericiooptions.IOStreams) int {
	o := NewOptions(streams)
	cmd := NewCommand(o)
	cmd.SetArgs(args[1:])
	if strings.HasPrefix(filepath.Base(args[0]), completerPrefix) {
		cmd.SetArgs(append([]string{cobra.ShellCompRequestCmd}, args[1:]...))
	}
	return o.Report(cmd.ExecuteContext(ctx))
}

// completerPrefix begins the name under which kubectl calls this program to complete the
// arguments of `kubectl vm`.
const completerPrefix = "kubectl_complete-"

// NewCommand returns the command with all verbs. Its errors are for Options.Report.
func NewCommand(o *Options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kubectl-vm",
		Short: "Use virtual machines",
		Long: "Create, watch and use the virtual machines that Drover runs from VirtualMachine objects.\n" +
			"Every verb takes the flags of kubectl, such as --context and --namespace.",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: o.Program},
		SilenceUsage: true, SilenceErrors: true,
	}
	cmd.SetIn(o.In)
	cmd.SetOut(o.Out)
	cmd.SetErr(o.ErrOut)
	o.Config.AddFlags(cmd.PersistentFlags())
	normalizeFlags(cmd)
	cmd.AddGroup(
		&cobra.Group{ID: groupLifecycle, Title: "Create and change:"},
		&cobra.Group{ID: groupObserve, Title: "Observe:"},
		&cobra.Group{ID: groupConnect, Title: "Connect:"},
	)
	cmd.AddCommand(newVerbs(o)...)
	return cmd
}

// newVerbs returns the verbs, in the order of the help.
func newVerbs(o *Options) []*cobra.Command {
	return []*cobra.Command{
		NewCreateCommand(o),
		NewStartCommand(o), NewStopCommand(o), NewRestartCommand(o), NewPauseCommand(o), NewResumeCommand(o),
		NewResizeCommand(o), NewPortCommand(o), NewDeleteCommand(o),
		NewListCommand(o), NewShowCommand(o), NewTopCommand(o), NewExplainCommand(o),
	}
}

// normalizeFlags makes --dry_run mean --dry-run, as in kubectl.
func normalizeFlags(cmd *cobra.Command) {
	cmd.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
}

// examples returns the examples of a verb's help.
func (o *Options) examples(lines ...string) string {
	for i, line := range lines {
		lines[i] = "  " + o.Program + " " + line
	}
	return strings.Join(lines, "\n")
}
