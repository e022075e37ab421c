// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/terminal"
)

// noDetachKeys replaces Ctrl-P Ctrl-Q, at which the engine detaches from a terminal without
// passing the keys on. Detach keys cannot be disabled, but nobody types these by accident.
const noDetachKeys = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@"

// console is attached to the main process of a container.
type console struct {
	access *Access
	target inspected
	screen *screen

	ctx    context.Context // ends with the console
	cancel context.CancelCauseFunc

	mu    sync.Mutex
	input *input // nil until the first Write
}

// Console implements driver.Consoler. It attaches before it reads the earlier output. So
// it misses output only if the engine has yet to write that output to its log.
func (a *Access) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	target, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	conn, err := a.attachTo(ctx, target, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true, DetachKeys: noDetachKeys})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	c := &console{access: a, target: target, screen: newScreen(), ctx: ctx, cancel: cancel}
	context.AfterFunc(ctx, func() {
		conn.Close()
		c.releaseWriter()
	})
	go c.showOutput(ctx, conn.Reader)
	if err := c.showEarlier(ctx); err != nil {
		cancel(err)
		return nil, c.explainFailure(ctx, err)
	}
	return c, nil
}

// explainFailure returns why the console has ended, if that is the cause of err, or err itself.
func (c *console) explainFailure(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, io.EOF) {
		return driver.Errorf(driver.ErrRetry, "container %s stopped or was restarted during the call", engine.ShortID(c.target.ID))
	}
	return cmp.Or(cause, err)
}

// attachTo opens a connection to the main process.
func (a *Access) attachTo(ctx context.Context, target inspected, o client.ContainerAttachOptions) (conn client.HijackedResponse, err error) {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	err = a.options.Engine.Read(ctx, "attach to container "+engine.ShortID(target.ID), func(ctx context.Context, e *client.Client) error {
		res, err := e.ContainerAttach(ctx, target.ID, o)
		conn = res.HijackedResponse
		return err
	})
	if err != nil && !errors.Is(err, driver.ErrUnavailable) && ctx.Err() == nil {
		err = driver.Errorf(driver.ErrRetry, "%w", err) // Docker's client does not return the engine's reason
	}
	return conn, err
}

// showEarlier adds the end of the earlier output at the beginning of the screen. It succeeds without
// earlier output if the log driver does not keep logs.
func (c *console) showEarlier(ctx context.Context) error {
	if err := c.access.checkUnchanged(ctx, c.target); err != nil {
		return err
	}
	limited, cancel := c.access.withTimeout(ctx)
	defer cancel()
	earlier, err := c.readEarlier(limited)
	switch {
	case err == nil, errors.Is(err, driver.ErrUnsupported):
		c.screen.putBefore(earlier)
		return nil
	case ctx.Err() == nil && limited.Err() != nil:
		return driver.Errorf(driver.ErrUnavailable, "the engine did not send the log of container %s in time: %w", engine.ShortID(c.target.ID), err)
	}
	return err
}

// earlierLines is how many lines are read to get earlierSize bytes of earlier output. These are
// enough unless lines are very short.
const earlierLines = "1000"

func (c *console) readEarlier(ctx context.Context) ([]byte, error) {
	l, err := c.access.openLog(ctx, c.target, client.ContainerLogsOptions{Since: formatTime(c.access.runBegin(c.target)), Tail: earlierLines})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	return readEnd(l, earlierSize)
}

// showOutput copies output to the screen until the connection ends.
func (c *console) showOutput(ctx context.Context, reader io.Reader) {
	output := newFrames(reader, c.target.hasTerminal())
	err := terminal.CopySplit(c.screen, c.screen, output)
	if ctx.Err() == nil {
		err = c.explainEnd(ctx, err)
	} else {
		err = context.Cause(ctx)
	}
	c.screen.endWith(err)
	c.cancel(err)
}

const (
	// endWithin is how long an engine may report that a container still runs, after it has closed the container's
	// output. endInterval is the time between two queries for that.
	endWithin   = 5 * time.Second
	endInterval = 50 * time.Millisecond
)

// explainEnd returns io.EOF if the container has stopped, or an error that the connection was lost.
func (c *console) explainEnd(ctx context.Context, cause error) error {
	limited, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		err := c.access.checkUnchanged(ctx, c.target)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, driver.ErrRetry), errors.Is(err, driver.ErrNotFound):
			return io.EOF
		case err == nil && kit.Pause(limited, c.access.options.Clock, endInterval) == nil:
			continue
		case err == nil:
			err = cmp.Or(cause, errConnectionEnded)
		}
		return driver.Errorf(driver.ErrUnavailable, "the console of container %s is lost: %w", engine.ShortID(c.target.ID), err)
	}
}

var errConnectionEnded = errors.New("the engine has ended the connection")

// Read implements io.Reader.
func (c *console) Read(p []byte) (int, error) { return c.screen.Read(p) }

// Close implements io.Closer.
func (c *console) Close() error {
	c.cancel(os.ErrClosed)
	c.releaseWriter()
	return nil
}

// releaseWriter lets another console write. Call it once the console's context has ended.
func (c *console) releaseWriter() {
	c.screen.endWith(context.Cause(c.ctx))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.input != nil {
		c.input.release()
		c.input = nil
	}
}
