// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
)

// LogQuery says which part of a log to print.
type LogQuery struct {
	// Follow also prints later output. Previous prints the log before the current log instead.
	Follow, Previous bool
	// Tail is the number of lines to print from the end, or -1 for all lines.
	Tail int64
}

// logsOptions has the flags of the command logs.
type logsOptions struct {
	*kit.Options
	query LogQuery
}

// NewLogsCommand returns the command logs.
func NewLogsCommand(o *kit.Options) *cobra.Command {
	l := &logsOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "logs NAME",
		Short: "Print what a VM wrote to its console or output",
		Args:  kit.RequireName(kit.WithoutCommand), Example: o.FormatExamples("logs web", "logs web -f --tail 20"),
		RunE: func(cmd *cobra.Command, args []string) error { return l.printLog(cmd.Context(), args[0]) },
	})
	cmd.Flags().BoolVarP(&l.query.Follow, "follow", "f", false, "keep printing new output")
	cmd.Flags().BoolVarP(&l.query.Previous, "previous", "p", false, "print the log before the current one: of a container's previous run, or the rotated part of a machine's log")
	cmd.Flags().Int64Var(&l.query.Tail, "tail", -1, "number of lines from the end to print, -1 for all")
	return cmd
}

func (l *logsOptions) printLog(ctx context.Context, name string) error {
	if l.query.Tail < -1 {
		return fmt.Errorf("--tail is %d: it must be -1 or more", l.query.Tail)
	}
	ctx, stop := printable.NewOutput(l.Out).UntilReaderCloses(ctx)
	defer stop()
	target, err := vms.FindTarget(ctx, l.Options, name, streamsapi.Log)
	if err != nil {
		return err
	}
	return target.WrapError(ctx, CopyLog(ctx, target, l.Out, l.ErrOut, l.query, nil))
}

// Progress counts the bytes of standard output and standard error that a job has printed, or knows to be lost.
type Progress struct{ Stdout, Stderr int64 }

// CopyLog prints the log of a VM. For a job, it continues after the job's progress, updates the progress, and fails if
// output is lost. Without a job, progress is nil, and lost output is not reported.
func CopyLog(ctx context.Context, target vms.Target, out, errOut io.Writer, query LogQuery, progress *Progress) error {
	parameters := url.Values{"follow": {strconv.FormatBool(query.Follow)}, "previous": {strconv.FormatBool(query.Previous)}}
	if query.Tail >= 0 {
		parameters.Set("tailLines", strconv.FormatInt(query.Tail, 10))
	}
	if progress == nil {
		progress = &Progress{}
	} else {
		parameters.Set("attached", "true")
		parameters.Set("skipStdout", strconv.FormatInt(progress.Stdout, 10))
		parameters.Set("skipStderr", strconv.FormatInt(progress.Stderr, 10))
	}
	stdout := &countedWriter{out, &progress.Stdout}
	err := target.CopyStream(ctx, streamsapi.Log, parameters, remotecommand.StreamOptions{Stdout: stdout, Stderr: &countedWriter{errOut, &progress.Stderr}})
	if !errors.Is(err, streams.ErrNoWebSocket) {
		return err
	}
	log, err := target.OpenStream(ctx, streamsapi.Log, parameters)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if _, err := io.CopyN(io.Discard, log, progress.Stdout); err != nil {
		return ignoreEOF(err)
	}
	_, err = io.Copy(stdout, log)
	return err
}

// countedWriter counts the bytes that it writes.
type countedWriter struct {
	writer  io.Writer
	written *int64
}

// Write implements io.Writer.
func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.writer.Write(p)
	*w.written += int64(n)
	return n, err
}

// ignoreEOF returns nil for io.EOF, which is the end of a log. It returns any other error unchanged.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
