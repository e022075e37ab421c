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
	// textSize is how much of a server's output is kept, tailSize what a console begins
	// with.
	textSize = 64 << 10
	tailSize = 4 << 10
	// stateEvery is how often the readers of a terminal check whether its server still runs.
	stateEvery = 200 * time.Millisecond
)

// screens has the screens of servers by their IDs, for all drivers of this process.
var screens driver.SyncMap[string, *screen]

// screen is the text that a server prints in one run. It repeats what is typed to it.
type screen struct {
	run    string
	before []byte // printed in the run before

	mu      sync.Mutex
	text    []byte
	dropped int           // how much of the beginning of text is gone
	more    chan struct{} // closed when there is more
	writer  *console

	checkedAt time.Time // when it was checked whether the run goes on
	over      bool
}

// screenOf returns the screen of the server's run, whose first line says that it booted.
func screenOf(s Server) (t *screen) {
	screens.Update(s.ID, func(last *screen, exists bool) (*screen, bool) {
		if exists && last.run == s.Run {
			t = last
			return t, true
		}
		t = &screen{run: s.Run, more: make(chan struct{})}
		if exists {
			t.before = last.read(0)
		}
		t.print(fmt.Appendf(nil, "%s has booted (%s)\n", s.Name, s.Run))
		return t, true
	})
	return t
}

// print adds to the text.
func (t *screen) print(text []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, text...)
	if excess := len(t.text) - textSize; excess > 0 {
		t.text, t.dropped = t.text[excess:], t.dropped+excess
	}
	close(t.more)
	t.more = make(chan struct{})
}

// read returns the text from a position on, or what is left of it.
func (t *screen) read(from int) []byte {
	text := make([]byte, textSize)
	n, _, _ := t.readInto(text, from)
	return text[:n]
}

func (t *screen) readInto(p []byte, from int) (n, next int, more <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	from = max(from, t.dropped)
	n = copy(p, t.text[from-t.dropped:])
	return n, from + n, t.more
}

func (t *screen) end() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped + len(t.text)
}

// claim gives a console the right to write, if no other has it.
func (t *screen) claim(c *console) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer == nil && c.ctx.Err() == nil { // a console that is closed would keep it
		t.writer = c
	}
	return t.writer == c
}

func (t *screen) release(c *console) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.writer == c {
		t.writer = nil
	}
}

// console reads a terminal from a position on.
type console struct {
	*screen
	access *Access
	of     Server
	at     int

	ctx   context.Context // ends with the console
	leave context.CancelCauseFunc
}

func (a *Access) newConsole(ctx context.Context, attached Server, at int) *console {
	ctx, end := context.WithCancelCause(ctx)
	c := &console{screen: screenOf(attached), access: a, of: attached, at: at, ctx: ctx, leave: end}
	context.AfterFunc(ctx, func() { c.release(c) })
	return c
}

// Read implements io.Reader. It checks first whether the server runs, so as not to miss the
// last output.
func (c *console) Read(p []byte) (n int, err error) {
	for n == 0 && len(p) > 0 {
		over := c.isOver()
		var more <-chan struct{}
		n, c.at, more = c.readInto(p, c.at)
		switch {
		case c.ctx.Err() != nil:
			return 0, context.Cause(c.ctx)
		case n == 0 && over:
			return 0, io.EOF
		case n == 0:
			c.wait(more)
		}
	}
	return n, nil
}

// isOver reports whether the run is over. One check is for all readers.
func (c *console) isOver() bool {
	now := c.access.Clock.Now()
	c.mu.Lock()
	due := !c.over && now.Sub(c.checkedAt) >= stateEvery
	if due {
		c.checkedAt = now
	}
	over := c.over
	c.mu.Unlock()
	if !due {
		return over
	}
	over = !c.access.goesOn(c.ctx, c.of)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = over
	return over
}

func (c *console) wait(more <-chan struct{}) {
	timer := c.access.Clock.NewTimer(stateEvery)
	defer timer.Stop()
	select {
	case <-more:
	case <-timer.C():
	case <-c.ctx.Done():
	}
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	switch {
	case c.ctx.Err() != nil:
		return 0, context.Cause(c.ctx)
	case !c.claim(c):
		return 0, driver.ErrConsoleTaken
	}
	c.print(p)
	return len(p), nil
}

// Close implements io.Closer.
func (c *console) Close() error {
	c.leave(os.ErrClosed)
	c.release(c)
	return nil
}
