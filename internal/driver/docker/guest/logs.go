// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/terminal"
)

// Logs implements driver.LogReader. The engine keeps one log for all runs of a container, and knows
// only when the last run began. So the log is the output since then, and the previous log is all
// earlier output, of one run or more.
func (a *Access) Logs(ctx context.Context, uid types.UID, o driver.LogOptions) (io.ReadCloser, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	c, err := a.findContainer(ctx, uid)
	if err != nil {
		return nil, err
	}
	if c.State == nil || engine.ParseTime(c.State.StartedAt).IsZero() {
		return nil, driver.Errorf(driver.ErrRetry, "the server has not run yet, so there is no log")
	}
	if o.Previous {
		return a.openPrevious(ctx, c, o.TailLines)
	}
	options := client.ContainerLogsOptions{Follow: o.Follow, Since: formatTime(a.runBegin(c))}
	if o.TailLines != nil {
		options.Tail = strconv.FormatInt(*o.TailLines, 10)
	}
	l, err := a.openLog(ctx, c, options)
	if err != nil {
		return nil, err
	}
	l.skip = [2]int64{o.SkipStdout, o.SkipStderr}
	return l, nil
}

const (
	// shortestStart is less than any engine takes from the end of a run to the first output of the next
	// run, and more than any engine takes from that output to the recorded start.
	shortestStart = 100 * time.Millisecond
	longestStart  = time.Second
	// firstStart is the longest time from the creation of a container to its first run.
	firstStart = 10 * time.Second
)

// runBegin returns a time between the end of the previous run and the first output of the last run, or zero for the
// first run.
//
// The first output is often older than the start that the engine has recorded, and a run may even have ended before its
// recorded start. The engine keeps only the last end. If the last run has ended, the previous end is known only if this
// process has started the last run. Otherwise a job that began soon after its creation counts as one that ran once.
func (a *Access) runBegin(c inspected) time.Time {
	began, ended, previousEnd := engine.ParseTime(c.State.StartedAt), engine.ParseTime(c.State.FinishedAt), a.options.PreviousEnd(c.ID)
	if !c.hasEnded() {
		previousEnd = ended
	}
	switch pause := began.Sub(previousEnd); {
	case ended.IsZero():
		return time.Time{}
	case pause > 0 && !previousEnd.IsZero():
		return began.Add(-min(pause/2, longestStart))
	case c.isJob() && began.Sub(engine.ParseTime(c.Created)) < firstStart:
		return time.Time{}
	}
	return earlierOf(began, ended).Add(-shortestStart)
}

func earlierOf(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// hasEnded reports whether the last run is over, so that FinishedAt is its end.
func (c inspected) hasEnded() bool {
	return c.State.Status == container.StateExited || c.State.Status == container.StateDead
}

// isJob reports whether the engine starts a container only once.
func (c inspected) isJob() bool {
	return c.HostConfig != nil && c.HostConfig.RestartPolicy.Name == container.RestartPolicyDisabled
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// log is the output of a container. It implements driver.SplitLog.
type log struct {
	*frames
	cancel context.CancelCauseFunc
	skip   [2]int64 // how much of stdout and stderr not to return
}

// ReadStream implements driver.SplitLog.
func (l *log) ReadStream(p []byte) (int, bool, error) {
	for {
		n, isStderr, err := l.frames.ReadStream(p)
		skip := &l.skip[0]
		if isStderr {
			skip = &l.skip[1]
		}
		skipped := min(int64(n), *skip)
		*skip -= skipped
		if n = copy(p, p[skipped:n]); n > 0 || err != nil {
			return n, isStderr, err
		}
	}
}

// Read implements io.Reader.
func (l *log) Read(p []byte) (int, error) {
	n, _, err := l.ReadStream(p)
	return n, err
}

// Close implements io.Closer.
func (l *log) Close() error {
	l.cancel(os.ErrClosed)
	return nil
}

// openLog opens a part of the container's log, which ends with ctx.
func (a *Access) openLog(ctx context.Context, c inspected, o client.ContainerLogsOptions) (*log, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	o.ShowStdout, o.ShowStderr = true, true
	var body io.ReadCloser
	err := a.openStream(ctx, cancel, "read the log of container "+engine.ShortID(c.ID), func(ctx context.Context, e *client.Client) (err error) {
		body, err = e.ContainerLogs(ctx, c.ID, o)
		return err
	})
	if err != nil {
		cancel(err)
		return nil, explainLogError(err)
	}
	context.AfterFunc(ctx, func() { _ = body.Close() })
	return &log{frames: newFrames(logBody{body, ctx, engine.ShortID(c.ID)}, c.hasTerminal()), cancel: cancel}, nil
}

// logBody is the engine's answer. If ctx ends, Read fails with its cause.
type logBody struct {
	io.Reader
	ctx       context.Context
	container string
}

// Read implements io.Reader.
func (r logBody) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	switch {
	case err == nil:
	case r.ctx.Err() != nil:
		err = context.Cause(r.ctx)
	case !errors.Is(err, io.EOF):
		err = driver.Errorf(driver.ErrUnavailable, "the engine has cut off the log of container %s: %w", r.container, err)
	}
	return n, err
}

func explainLogError(err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return driver.Errorf(driver.ErrNotFound, "%w", err)
	case errdefs.IsNotImplemented(err):
		return driver.Errorf(driver.ErrUnsupported, "%w: the engine's log driver does not keep a log that can be read", err)
	}
	return err
}

var errNoPrevious = driver.Errorf(driver.ErrRetry, "the output of a previous run is not known: the log of a container that was replaced is gone")

// openPrevious opens the output before the last run. The engine can only count lines from the end of
// the whole log. So for the last lines before that run, openPrevious reads the output twice.
func (a *Access) openPrevious(ctx context.Context, c inspected, tail *int64) (io.ReadCloser, error) {
	until := a.runBegin(c)
	if until.IsZero() {
		return nil, errNoPrevious
	}
	options := client.ContainerLogsOptions{Until: formatTime(until)}
	skip := int64(0)
	if tail != nil {
		lines, err := a.countLines(ctx, c, options)
		if err != nil {
			return nil, err
		}
		skip = max(0, lines-*tail)
	}
	l, err := a.openLog(ctx, c, options)
	if err != nil {
		return nil, err
	}
	if _, err = l.body.Peek(1); err == nil {
		err = skipLines(l, skip)
	} else if errors.Is(err, io.EOF) {
		err = errNoPrevious
	}
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
}

func (a *Access) countLines(ctx context.Context, c inspected, o client.ContainerLogsOptions) (n int64, err error) {
	l, err := a.openLog(ctx, c, o)
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return countLines(l)
}

// countLines reads to the end, and returns the number of lines. The last line may lack a newline.
func countLines(r io.Reader) (n int64, err error) {
	scanner := bufio.NewReader(r)
	for isInLine := false; ; {
		b, err := scanner.ReadByte()
		switch {
		case errors.Is(err, io.EOF) && isInLine:
			return n + 1, nil
		case err != nil:
			return n, terminal.IgnoreEOF(err)
		}
		if isInLine = b != '\n'; !isInLine {
			n++
		}
	}
}

// skipLines reads n lines, and nothing after them.
func skipLines(r io.Reader, n int64) error {
	for char := make([]byte, 1); n > 0; {
		if _, err := r.Read(char); err != nil {
			return terminal.IgnoreEOF(err)
		}
		if char[0] == '\n' {
			n--
		}
	}
	return nil
}
