// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/driver"
)

const (
	// textSize bounds how many bytes of a server's output are kept. A new console begins with the
	// last tailSize of them.
	textSize = 64 << 10
	tailSize = 4 << 10
	// checkInterval is how often consoles check whether their server still runs.
	checkInterval = 200 * time.Millisecond
)

// screens has the screens of servers by their IDs, for all drivers of this process.
var screens driver.SyncMap[string, *screen]

// screen is the output of a server's run, together with the input that the server echoes.
type screen struct {
	run         string
	previousRun []byte // output of the previous run, nil if unknown

	mu      sync.Mutex
	text    []byte
	dropped int           // number of bytes that were removed before text
	changed chan struct{} // closed at the next output
	writer  *console

	checkedAt time.Time // time of the last check whether the run goes on
	isOver    bool      // whether the run is over
}

// screenOf returns the screen of the server's run. Its first line says that the server has booted.
func screenOf(s Server) (t *screen) {
	screens.Update(s.ID, func(last *screen, exists bool) (*screen, bool) {
		if exists && last.run == s.Run {
			t = last
			return t, true
		}
		t = &screen{run: s.Run, changed: make(chan struct{})}
		if exists {
			t.previousRun = last.readFrom(0)
		}
		t.print(fmt.Appendf(nil, "%s has booted (%s)\n", s.Name, s.Run))
		return t, true
	})
	return t
}

func (t *screen) print(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if excess := len(t.text) - textSize; excess > 0 {
		t.text, t.dropped = t.text[excess:], t.dropped+excess
	}
	close(t.changed)
	t.changed = make(chan struct{})
}

// readFrom returns the output from an offset on, as far as it is kept.
func (t *screen) readFrom(offset int) []byte {
	text := make([]byte, textSize)
	n, _, _ := t.readInto(text, offset)
	return text[:n]
}

func (t *screen) readInto(p []byte, offset int) (n, next int, changed <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	offset = max(offset, t.dropped)
	n = copy(p, t.text[offset-t.dropped:])
	return n, offset + n, t.changed
}

func (t *screen) endOffset() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped + len(t.text)
}

// claimWriter gives a console the right to write unless another console has it.
func (t *screen) claimWriter(c *console) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer == nil && c.ctx.Err() == nil { // a closed console would never release the right
		t.writer = c
	}
	return t.writer == c
}

func (t *screen) releaseWriter(c *console) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer == c {
		t.writer = nil
	}
}

// console reads a screen from an offset on.
type console struct {
	*screen
	access *Access
	server Server
	offset int

	ctx    context.Context // ends with the console
	cancel context.CancelCauseFunc
}

func (a *Access) newConsole(ctx context.Context, server Server, offset int) *console {
	ctx, cancel := context.WithCancelCause(ctx)
	c := &console{screen: screenOf(server), access: a, server: server, offset: offset, ctx: ctx, cancel: cancel}
	context.AfterFunc(ctx, func() { c.releaseWriter(c) })
	return c
}

// Read implements io.Reader. It checks whether the run is over before it reads, since output may
// arrive between a read and a later check.
func (c *console) Read(p []byte) (n int, err error) {
	for n == 0 && len(p) > 0 {
		isOver := c.checkOver()
		var changed <-chan struct{}
		n, c.offset, changed = c.readInto(p, c.offset)
		switch {
		case c.ctx.Err() != nil:
			return 0, context.Cause(c.ctx)
		case n == 0 && isOver:
			return 0, io.EOF
		case n == 0:
			c.waitForChange(changed)
		}
	}
	return n, nil
}

// checkOver reports whether the run is over. All consoles of a screen share one check an interval.
func (c *console) checkOver() bool {
	now := c.access.Clock.Now()
	c.mu.Lock()
	isDue := !c.isOver && now.Sub(c.checkedAt) >= checkInterval
	if isDue {
		c.checkedAt = now
	}
	isOver := c.isOver
	c.mu.Unlock()
	if !isDue {
		return isOver
	}
	isOver = !c.access.isRunActive(c.ctx, c.server)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isOver = isOver
	return isOver
}

func (c *console) waitForChange(changed <-chan struct{}) {
	timer := c.access.Clock.NewTimer(checkInterval)
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C():
	case <-c.ctx.Done():
	}
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	switch {
	case c.ctx.Err() != nil:
		return 0, context.Cause(c.ctx)
	case !c.claimWriter(c):
		return 0, driver.ErrConsoleTaken
	}
	c.print(p)
	return len(p), nil
}

// Close implements io.Closer.
func (c *console) Close() error {
	c.cancel(os.ErrClosed)
	c.releaseWriter(c)
	return nil
}
