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

// LogQuery says which part of a log is printed.
type LogQuery struct {
	// Follow adds later output, and Previous reads the log before the current one.
	Follow, Previous bool
	// Tail is the number of lines from the end, -1 for all.
	Tail int64
}

// logsOptions are the flags of logs.
type logsOptions struct {
	*kit.Options
	query LogQuery
}

// NewLogsCommand returns the verb logs.
func NewLogsCommand(o *kit.Options) *cobra.Command {
	l := &logsOptions{Options: o}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "logs NAME",
		Short: "Print what a VM wrote to its console or output",
		Args:  kit.RequireNameAndCommand(kit.NoCommand), Example: o.FormatExamples("logs web", "logs web -f --tail 20"),
		RunE: func(cmd *cobra.Command, args []string) error { return l.printLog(cmd.Context(), args[0]) },
	})
	cmd.Flags().BoolVarP(&l.query.Follow, "follow", "f", false, "continue with the output that is written from now on")
	cmd.Flags().BoolVarP(&l.query.Previous, "previous", "p", false, "print what came before the current log: the container's run before, or what was cut off a machine's log")
	cmd.Flags().Int64Var(&l.query.Tail, "tail", -1, "number of lines from the end to print, -1 for all")
	return cmd
}

func (l *logsOptions) printLog(ctx context.Context, name string) error {
	if l.query.Tail < -1 {
		return fmt.Errorf("--tail is %d: it must be -1 or more", l.query.Tail)
	}
	ctx, stop := printable.NewOutput(l.Out).WhileRead(ctx)
	defer stop()
	from, err := vms.FindTarget(ctx, l.Options, name, streamsapi.Log)
	if err != nil {
		return err
	}
	return from.WrapError(ctx, CopyLog(ctx, from, l.Out, l.ErrOut, l.query, nil))
}

// Progress is how many bytes of a run's output a job has printed, or lost, by stream.
type Progress struct{ Stdout, Stderr int64 }

// CopyLog prints the log of a VM. A job has its progress: it goes on from there, and does without none of the output.
func CopyLog(ctx context.Context, from vms.Target, out, errOut io.Writer, part LogQuery, job *Progress) error {
	query := url.Values{"follow": {strconv.FormatBool(part.Follow)}, "previous": {strconv.FormatBool(part.Previous)}}
	if part.Tail >= 0 {
		query.Set("tailLines", strconv.FormatInt(part.Tail, 10))
	}
	if job == nil {
		job = &Progress{}
	} else {
		query.Set("attached", "true")
		query.Set("skipStdout", strconv.FormatInt(job.Stdout, 10))
		query.Set("skipStderr", strconv.FormatInt(job.Stderr, 10))
	}
	stdout := &countedWriter{out, &job.Stdout}
	err := from.CopyStream(ctx, streamsapi.Log, query, remotecommand.StreamOptions{Stdout: stdout, Stderr: &countedWriter{errOut, &job.Stderr}})
	if !errors.Is(err, streams.ErrNoWebSocket) {
		return err
	}
	log, err := from.OpenStream(ctx, streamsapi.Log, query)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	if _, err := io.CopyN(io.Discard, log, job.Stdout); err != nil {
		return ignoreEOF(err)
	}
	_, err = io.Copy(stdout, log)
	return err
}

// countedWriter counts what it writes.
type countedWriter struct {
	to      io.Writer
	written *int64
}

// Write implements io.Writer.
func (w *countedWriter) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	*w.written += int64(n)
	return n, err
}

// ignoreEOF returns nil for the end of a log.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
