// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// giveUpAfter is how long console tries to connect again after the connection is lost.
const giveUpAfter = 5 * time.Minute

// NewConsoleCommand returns the verb console.
func NewConsoleCommand(o *Options) *cobra.Command {
	return joinGroup(o, &cobra.Command{
		Use:   "console NAME",
		Short: "Use the serial console of a VM",
		Long: "Use the serial console of a VM. Many people may watch, and the first to type may type.\n" +
			"Ctrl-] leaves. The console connects again when the VM or Drover restarts.",
		Args: requireNameAndCommand(noCommand), Example: o.formatExamples("console web"),
		RunE: func(cmd *cobra.Command, args []string) error { return openConsole(cmd.Context(), o, args[0]) },
	})
}

func openConsole(ctx context.Context, o *Options, name string) error {
	ctx, stop := printable.NewOutput(o.Out).WhileRead(ctx)
	defer stop()
	to, err := findTarget(ctx, o, name, streamsapi.Console)
	if err != nil {
		return err
	}
	session := streams.ConsoleSession{
		Client: to.client, Namespace: to.namespace, Name: to.name,
		In: o.In, Out: o.Out, Notes: o.ErrOut, Clock: o.Clock, GiveUp: giveUpAfter,
	}
	return to.describeError(ctx, session.Run(ctx))
}
