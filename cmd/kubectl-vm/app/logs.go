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

// logQuery says which part of a log is printed.
type logQuery struct {
	// follow adds later output, and previous reads the log before the current one.
	follow, previous bool
	// tail is the number of lines from the end, -1 for all.
	tail int64
}

// logsOptions are the flags of logs.
type logsOptions struct {
	*Options
	query logQuery
}

// NewLogsCommand returns the verb logs.
func NewLogsCommand(o *Options) *cobra.Command {
	l := &logsOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "logs NAME",
		Short: "Print what a VM wrote to its console or output",
		Args:  requireNameAndCommand(noCommand), Example: o.formatExamples("logs web", "logs web -f --tail 20"),
		RunE: func(cmd *cobra.Command, args []string) error { return l.run(cmd.Context(), args[0]) },
	})
	cmd.Flags().BoolVarP(&l.query.follow, "follow", "f", false, "continue with the output that is written from now on")
	cmd.Flags().BoolVarP(&l.query.previous, "previous", "p", false, "print what came before the current log: the container's run before, or what was cut off a machine's log")
	cmd.Flags().Int64Var(&l.query.tail, "tail", -1, "number of lines from the end to print, -1 for all")
	return cmd
}

func (l *logsOptions) run(ctx context.Context, name string) error {
	if l.query.tail < -1 {
		return fmt.Errorf("--tail is %d: it must be -1 or more", l.query.tail)
	}
	ctx, stop := printable.NewOutput(l.Out).WhileRead(ctx)
	defer stop()
	from, err := findTarget(ctx, l.Options, name, streamsapi.Log)
	if err != nil {
		return err
	}
	_, err = copyLog(ctx, l.Out, from, l.query, 0)
	return err
}

// copyLog prints the log of a VM without its first bytes, and returns how many were printed.
func copyLog(ctx context.Context, out io.Writer, from target, part logQuery, skip int64) (int64, error) {
	query := url.Values{"follow": {strconv.FormatBool(part.follow)}, "previous": {strconv.FormatBool(part.previous)}}
	if part.tail >= 0 {
		query.Set("tailLines", strconv.FormatInt(part.tail, 10))
	}
	log, err := from.openStream(ctx, streamsapi.Log, query)
	if err != nil {
		return 0, from.describeError(ctx, err)
	}
	defer func() { _ = log.Close() }()
	if _, err := io.CopyN(io.Discard, log, skip); err != nil {
		return 0, ignoreEOF(err)
	}
	return io.Copy(out, log)
}

// ignoreEOF returns nil for the end of a log.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
