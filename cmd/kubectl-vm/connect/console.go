// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// retryFor is how long the verb console tries to connect again after the connection is lost.
const retryFor = 5 * time.Minute

// NewConsoleCommand returns the command console.
func NewConsoleCommand(o *kit.Options) *cobra.Command {
	return joinGroup(o, &cobra.Command{
		Use:   "console NAME",
		Short: "Use the serial console of a VM",
		Long: "Use the serial console of a VM, or of a container image the input and output of its command, as docker\n" +
			"attach. Many people may watch, and the first to type may type. Ctrl-] leaves, or Ctrl-C where the\n" +
			"command has an input without a terminal. The console connects again when the VM or Drover restarts.",
		Args: kit.RequireName(kit.WithoutCommand), Example: o.FormatExamples("console web"),
		RunE: func(cmd *cobra.Command, args []string) error { return openConsole(cmd.Context(), o, args[0]) },
	})
}

func openConsole(ctx context.Context, o *kit.Options, name string) error {
	ctx, stop := printable.NewOutput(o.Out).UntilReaderCloses(ctx)
	defer stop()
	target, err := vms.FindTarget(ctx, o, name, streamsapi.Console)
	if err != nil {
		return err
	}
	session := NewSession(o, target)
	if hasTerminal := target.VM == nil || target.VM.Spec.TTY || !target.VM.Spec.Stdin; hasTerminal { // a pipe gets lines
		session.Terminal = streams.OpenTerminal(o.In, o.Out)
	}
	return target.WrapError(ctx, session.Run(ctx))
}

// NewSession returns a session with the console of a VM.
func NewSession(o *kit.Options, target vms.Target) *streams.ConsoleSession {
	return &streams.ConsoleSession{
		Client: target.Client, Namespace: target.Namespace, Name: target.Name,
		In: o.In, Out: o.Out, Notes: o.ErrOut, Clock: o.Clock, RetryFor: retryFor,
	}
}
