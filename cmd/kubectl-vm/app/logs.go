// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// logsOptions are the flags of logs.
type logsOptions struct {
	connection
	follow, previous bool
	tail             int64
}

// NewLogsCommand returns the verb logs.
func NewLogsCommand(o *Options) *cobra.Command {
	l := &logsOptions{connection: connection{Options: o}}
	cmd := l.newConnectCommand(&cobra.Command{
		Use:   "logs NAME",
		Short: "Print what a VM wrote to its console or output",
		Args:  oneName(noCommand), Example: o.formatExamples("logs web", "logs web -f --tail 20"),
		RunE: func(cmd *cobra.Command, args []string) error { return l.run(cmd.Context(), args[0]) },
	})
	cmd.Flags().BoolVarP(&l.follow, "follow", "f", false, "continue with the output that is written from now on")
	cmd.Flags().BoolVarP(&l.previous, "previous", "p", false, "print what came before the current log: the container's run before, or what was cut off a machine's log")
	cmd.Flags().Int64Var(&l.tail, "tail", -1, "number of lines from the end to print, -1 for all")
	return cmd
}

func (l *logsOptions) run(ctx context.Context, name string) error {
	if l.tail < -1 {
		return fmt.Errorf("--tail is %d: it must be -1 or more", l.tail)
	}
	ctx, stop := printable.NewOutput(l.Out).WhileRead(ctx)
	defer stop()
	at, err := l.findStream(ctx, name, streamsapi.Log)
	if err != nil {
		return err
	}
	_, err = l.copyFrom(ctx, at, 0)
	return err
}

// copyFrom prints the log of a VM without its first bytes, and returns how many were printed.
func (l *logsOptions) copyFrom(ctx context.Context, stream place, skip int64) (int64, error) {
	query := url.Values{"follow": {strconv.FormatBool(l.follow)}, "previous": {strconv.FormatBool(l.previous)}}
	if l.tail >= 0 {
		query.Set("tailLines", strconv.FormatInt(l.tail, 10))
	}
	log, err := stream.client.Get(ctx, stream.namespace, stream.name, streamsapi.Log, query)
	if err != nil {
		return 0, stream.describe(ctx, err)
	}
	defer func() { _ = log.Close() }()
	if _, err := io.CopyN(io.Discard, log, skip); err != nil {
		return 0, ignoreEOF(err)
	}
	return io.Copy(l.Out, log)
}

// ignoreEOF returns nil for the end of a log.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
