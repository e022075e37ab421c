// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"os"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// Logs implements driver.LogReader. The engine keeps one log for all runs of a container and
// knows only when the last one began: the log is the output from then on, and the previous
// log is everything before, of as many runs as there were.
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
	return a.openLog(ctx, c, options)
}

const (
	// shortestStart is less than any engine takes from the end of a run to the first output
	// of the next, and more than it takes from that to writing down that it began.
	shortestStart = 100 * time.Millisecond
	longestStart  = time.Second
	// firstStart is how soon after its creation the first run of a container begins.
	firstStart = 10 * time.Second
)

// runBegin returns a time between the end of the run before the last and the first output
// of the last one, or zero for the first run. That output is often older than the time at
// which the engine says the run began. The engine writes the end of a run over that of the
// run before: of a run which has ended, that is known only if this process has started it. Else a job that
// began soon after its creation is taken for one that ran once. A run may have ended before the time at which
// the engine says that it began.
func (a *Access) runBegin(c found) time.Time {
	began, ended, before := engine.ParseTime(c.State.StartedAt), engine.ParseTime(c.State.FinishedAt), a.options.PreviousEnd(c.ID)
	if !c.hasEnded() {
		before = ended
	}
	switch between := began.Sub(before); {
	case ended.IsZero():
		return time.Time{}
	case between > 0 && !before.IsZero():
		return began.Add(-min(between/2, longestStart))
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

// hasEnded reports whether the last run is over, so that the engine's time of an end is the end of that.
func (c found) hasEnded() bool {
	return c.State.Status == container.StateExited || c.State.Status == container.StateDead
}

// isJob reports whether the engine starts a container only once.
func (c found) isJob() bool {
	return c.HostConfig != nil && c.HostConfig.RestartPolicy.Name == container.RestartPolicyDisabled
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.Format(time.RFC3339Nano)
}

// log is the output of a container, its standard output and error merged.
type log struct {
	io.Reader
	end context.CancelCauseFunc
}

// Close implements io.Closer.
func (l *log) Close() error {
	l.end(os.ErrClosed)
	return nil
}

// openLog opens a part of the container's log. It ends with ctx.
func (a *Access) openLog(ctx context.Context, c found, o client.ContainerLogsOptions) (*log, error) {
	ctx, end := context.WithCancelCause(ctx)
	o.ShowStdout, o.ShowStderr = true, true
	var body io.ReadCloser
	err := a.openStream(ctx, end, "read the log of container "+engine.ShortID(c.ID), func(ctx context.Context, e *client.Client) (err error) {
		body, err = e.ContainerLogs(ctx, c.ID, o)
		return err
	})
	if err != nil {
		end(err)
		return nil, explainLog(err)
	}
	out, in := io.Pipe()
	context.AfterFunc(ctx, func() {
		_ = body.Close()
		_ = out.CloseWithError(context.Cause(ctx)) // for a copy that waits for its reader
	})
	go func() {
		err := copyOutput(in, body, c.hasTerminal())
		if err != nil && ctx.Err() == nil {
			err = driver.Errorf(driver.ErrUnavailable, "the engine has cut off the log of container %s: %w", engine.ShortID(c.ID), err)
		}
		_ = in.CloseWithError(err)
	}()
	return &log{Reader: endsWith{out, ctx}, end: end}, nil
}

// endsWith replaces an error that the end of a context caused by the cause of that.
type endsWith struct {
	io.Reader
	ctx context.Context
}

// Read implements io.Reader.
func (r endsWith) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && r.ctx.Err() != nil {
		err = context.Cause(r.ctx)
	}
	return n, err
}

// copyOutput copies what a container prints. Without a terminal the engine sends standard
// output and error in frames.
func copyOutput(writer io.Writer, reader io.Reader, hasTerminal bool) (err error) {
	if hasTerminal {
		_, err = io.Copy(writer, reader)
	} else {
		_, err = stdcopy.StdCopy(writer, writer, reader)
	}
	return err
}

func explainLog(err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return driver.Errorf(driver.ErrNotFound, "%w", err)
	case errdefs.IsNotImplemented(err):
		return driver.Errorf(driver.ErrUnsupported, "%w: the engine's log driver keeps nothing that can be read", err)
	}
	return err
}

var errNoPrevious = driver.Errorf(driver.ErrRetry, "no output of a previous run is known: a container that was replaced took its log with it")

// openPrevious opens what was printed before the last run. The engine counts lines from the
// end of the whole log, so the last ones before that run are found by reading it twice.
func (a *Access) openPrevious(ctx context.Context, c found, tail *int64) (io.ReadCloser, error) {
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
	buffered := bufio.NewReader(l.Reader)
	if _, err := buffered.Peek(1); err != nil {
		_ = l.Close()
		if errors.Is(err, io.EOF) {
			err = errNoPrevious
		}
		return nil, err
	}
	_, err = skipLines(buffered, skip)
	l.Reader = buffered
	if err != nil {
		_ = l.Close()
	}
	return l, err
}

func (a *Access) countLines(ctx context.Context, c found, o client.ContainerLogsOptions) (int64, error) {
	l, err := a.openLog(ctx, c, o)
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return skipLines(bufio.NewReader(l), math.MaxInt64)
}

// skipLines reads up to a number of lines, and returns how many there were.
func skipLines(r *bufio.Reader, most int64) (n int64, err error) {
	for begun := false; n < most; {
		part, err := r.ReadSlice('\n')
		begun = begun || len(part) > 0
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			continue
		case errors.Is(err, io.EOF) && begun:
			return n + 1, nil // a line without an end
		case errors.Is(err, io.EOF):
			return n, nil
		case err != nil:
			return n, err
		}
		n, begun = n+1, false
	}
	return n, nil
}
