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

// giveUpAfter is how long console tries to connect again after the connection is lost.
const giveUpAfter = 5 * time.Minute

// NewConsoleCommand returns the verb console.
func NewConsoleCommand(o *kit.Options) *cobra.Command {
	return joinGroup(o, &cobra.Command{
		Use:   "console NAME",
		Short: "Use the serial console of a VM",
		Long: "Use the serial console of a VM. Many people may watch, and the first to type may type.\n" +
			"Ctrl-] leaves. The console connects again when the VM or Drover restarts.",
		Args: kit.RequireNameAndCommand(kit.NoCommand), Example: o.FormatExamples("console web"),
		RunE: func(cmd *cobra.Command, args []string) error { return openConsole(cmd.Context(), o, args[0]) },
	})
}

func openConsole(ctx context.Context, o *kit.Options, name string) error {
	ctx, stop := printable.NewOutput(o.Out).WhileRead(ctx)
	defer stop()
	to, err := vms.FindTarget(ctx, o, name, streamsapi.Console)
	if err != nil {
		return err
	}
	session := streams.ConsoleSession{
		Client: to.Client, Namespace: to.Namespace, Name: to.Name,
		In: o.In, Out: o.Out, Notes: o.ErrOut, Clock: o.Clock, GiveUp: giveUpAfter,
	}
	return to.WrapError(ctx, session.Run(ctx))
}
