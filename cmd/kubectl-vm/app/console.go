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

type consoleOptions struct{ connection }

// NewConsoleCommand returns the verb console.
func NewConsoleCommand(o *Options) *cobra.Command {
	c := &consoleOptions{connection: connection{Options: o}}
	cmd := c.newConnectCommand(&cobra.Command{
		Use:   "console NAME",
		Short: "Use the serial console of a VM",
		Long: "Use the serial console of a VM. Many people may watch, and the first to type may type.\n" +
			"Ctrl-] leaves. The console connects again when the VM or Drover restarts.",
		Args: oneName(noCommand), Example: o.formatExamples("console web"),
		RunE: func(cmd *cobra.Command, args []string) error { return c.run(cmd.Context(), args[0]) },
	})
	return cmd
}

func (c *consoleOptions) run(ctx context.Context, name string) error {
	ctx, stop := printable.NewOutput(c.Out).WhileRead(ctx)
	defer stop()
	at, err := c.findStream(ctx, name, streamsapi.Console)
	if err != nil {
		return err
	}
	session := streams.ConsoleSession{
		Client: at.client, Namespace: at.namespace, Name: at.name,
		In: c.In, Out: c.Out, Notes: c.ErrOut, Clock: c.Clock, GiveUp: giveUpAfter,
	}
	return at.describe(ctx, session.Run(ctx))
}
