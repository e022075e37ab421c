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
)

// noDetachKeys replaces Ctrl-P Ctrl-Q, by which the engine leaves a terminal and which it
// would withhold from the program. No person types this by accident, and the engine knows no
// way to switch the keys off.
const noDetachKeys = "ctrl-^,ctrl-@,ctrl-^,ctrl-@,ctrl-^,ctrl-@"

// console is attached to the main process of a container.
type console struct {
	access *Access
	of     found
	screen *screen

	ctx context.Context // ends with the console
	end context.CancelCauseFunc

	mu   sync.Mutex
	line io.WriteCloser // to the standard input; nil until the first Write
}

// writers has, by container, the console that writes to it. All drivers in a process share
// it: ids of containers are unique.
var writers driver.SyncMap[string, *console]

// Console implements driver.Consoler. It attaches first and reads the earlier output then,
// so that none is missing between the two but what the engine has yet to write to its log.
func (a *Access) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	of, err := a.findRunning(ctx, uid)
	if err != nil {
		return nil, err
	}
	conn, err := a.attachTo(ctx, of, client.ContainerAttachOptions{Stream: true, Stdout: true, Stderr: true, DetachKeys: noDetachKeys})
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(ctx)
	c := &console{access: a, of: of, screen: newScreen(), ctx: ctx, end: end}
	context.AfterFunc(ctx, func() {
		conn.Close()
		c.releaseWriter()
	})
	go c.showOutput(ctx, conn.Reader)
	if err := c.showEarlier(ctx); err != nil {
		end(err)
		return nil, c.explainFailure(ctx, err)
	}
	return c, nil
}

// explainFailure returns the cause of an error that the end of the console caused.
func (c *console) explainFailure(ctx context.Context, err error) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, io.EOF) {
		return driver.Errorf(driver.ErrRetry, "container %s stopped or was restarted during the call", engine.ShortID(c.of.ID))
	}
	return cmp.Or(cause, err)
}

// attachTo opens a connection to the main process.
func (a *Access) attachTo(ctx context.Context, target found, o client.ContainerAttachOptions) (conn client.HijackedResponse, err error) {
	ctx, cancel := a.withTimeout(ctx)
	defer cancel()
	err = a.options.Engine.Read(ctx, "attach to container "+engine.ShortID(target.ID), func(ctx context.Context, e *client.Client) error {
		res, err := e.ContainerAttach(ctx, target.ID, o)
		conn = res.HijackedResponse
		return err
	})
	if err != nil && !errors.Is(err, driver.ErrUnavailable) && ctx.Err() == nil {
		err = driver.Errorf(driver.ErrRetry, "%w", err) // the client does not tell the engine's reason
	}
	return conn, err
}

// showEarlier puts the end of the earlier output before the output that is shown. A log driver
// that keeps nothing does not fail it.
func (c *console) showEarlier(ctx context.Context) error {
	if err := c.access.checkUnchanged(ctx, c.of); err != nil {
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
		return driver.Errorf(driver.ErrUnavailable, "the engine did not send the log of container %s in time: %w", engine.ShortID(c.of.ID), err)
	}
	return err
}

// earlierLines is more than the number of earlier lines that are shown, unless they are very
// short.
const earlierLines = "1000"

func (c *console) readEarlier(ctx context.Context) ([]byte, error) {
	l, err := c.access.openLog(ctx, c.of, client.ContainerLogsOptions{Since: formatTime(c.access.runBegin(c.of)), Tail: earlierLines})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.Close() }()
	return readEnd(l, earlierSize)
}

// showOutput copies the output to the screen until the connection ends.
func (c *console) showOutput(ctx context.Context, reader io.Reader) {
	err := copyOutput(c.screen, reader, c.of.hasTerminal())
	if ctx.Err() == nil {
		err = c.explainEnd(ctx, err)
	} else {
		err = context.Cause(ctx)
	}
	c.screen.endWith(err)
	c.end(err)
}

const (
	// endWithin is how long an engine may take from closing the output of a container to
	// reporting that it stopped.
	endWithin = 5 * time.Second
	endEvery  = 50 * time.Millisecond
)

// explainEnd returns io.EOF if the container stopped, else that the connection was lost.
func (c *console) explainEnd(ctx context.Context, cause error) error {
	limited, cancel := context.WithTimeout(ctx, endWithin)
	defer cancel()
	for {
		err := c.access.checkUnchanged(limited, c.of)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, driver.ErrRetry), errors.Is(err, driver.ErrNotFound):
			return io.EOF
		case err == nil && kit.Pause(limited, c.access.options.Clock, endEvery) == nil:
			continue
		case err == nil:
			err = cmp.Or(cause, errConnectionEnded)
		}
		return driver.Errorf(driver.ErrUnavailable, "the console of container %s is lost: %w", engine.ShortID(c.of.ID), err)
	}
}

var errConnectionEnded = errors.New("the engine has ended the connection")

// Read implements io.Reader.
func (c *console) Read(p []byte) (int, error) { return c.screen.Read(p) }

// Write sends what was typed to the main process. It waits for one that does not read.
func (c *console) Write(p []byte) (int, error) {
	line, err := c.openLine()
	if err != nil {
		return 0, err
	}
	n, err := line.Write(p)
	switch {
	case err == nil:
		return n, nil
	case c.ctx.Err() != nil:
		return n, context.Cause(c.ctx)
	}
	return n, driver.Errorf(driver.ErrRetry, "typing to container %s: %w", engine.ShortID(c.of.ID), err)
}

// openLine returns the connection to the standard input, which belongs to this console from
// then on.
func (c *console) openLine() (io.WriteCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ctx.Err() != nil:
		return nil, context.Cause(c.ctx)
	case c.line != nil:
		return c.line, nil
	}
	if holder, taken := writers.LoadOrStore(c.of.ID, c); taken && holder != c {
		return nil, driver.ErrConsoleTaken
	}
	conn, err := c.access.attachTo(c.ctx, c.of, client.ContainerAttachOptions{Stream: true, Stdin: true, DetachKeys: noDetachKeys})
	if err != nil {
		writers.Delete(c.of.ID)
		return nil, err
	}
	c.line = conn.Conn
	return c.line, nil
}

// Close ends the console.
func (c *console) Close() error {
	c.end(os.ErrClosed)
	c.releaseWriter()
	return nil
}

// releaseWriter gives up the right to write, once the console's context has ended.
func (c *console) releaseWriter() {
	c.screen.endWith(context.Cause(c.ctx))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line != nil {
		_ = c.line.Close()
		c.line = nil
		writers.Delete(c.of.ID)
	}
}
