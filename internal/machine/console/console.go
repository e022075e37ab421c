// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package console is the serial console of one guest: any number of readers, one who types, and the log's limit.
//
// Start with Console.
package console

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/machine/failure"
)

const (
	// maxHistory is how much of the last output is kept for readers. One that falls further behind
	// misses some.
	maxHistory = 256 << 10
	// tail is how much of the earlier output a new reader gets.
	tail = 4 << 10
)

// Console is the guest's serial console: any number of readers share one history, and all who
// type share the one line to the guest.
type Console struct {
	line net.Conn
	// cutLog cuts the log. It is called whenever the guest has printed so many bytes more, before any more is read: while
	// there is a reader, QEMU logs only what was read. Without one QEMU drops the output and logs all of it, so the log
	// grows without bound as long as no supervisor runs. cutLog is nil where there is no log.
	cutLog func()
	most   int64

	mu      sync.Mutex
	history []byte        // the last output
	printed int64         // all output until now, in bytes
	changed chan struct{} // closed at the next output, and at the end
	isOver  bool
	isTaken bool // a session has the right to type
	open    int  // sessions
	left    chan struct{}

	typing chan struct{} // a semaphore: one session types at a time
}

// New returns the console of a guest. Follow takes its output.
func New(line net.Conn) *Console {
	return &Console{line: line, changed: make(chan struct{}), left: make(chan struct{}), typing: make(chan struct{}, 1)}
}

// LimitLog has cutLog called whenever the guest has printed so many bytes more. It comes before Follow.
func (c *Console) LimitLog(most int64, cutLog func()) { c.most, c.cutLog = most, cutLog }

// Follow takes what the guest prints, until QEMU ends. QEMU would block the guest if it was not read.
func (c *Console) Follow() { c.followOutput(c.line) }

func (c *Console) followOutput(line io.Reader) {
	defer c.endOutput()
	_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{line}, make([]byte, 4<<10))
}

// Write takes what the guest prints. It waits for no reader.
func (c *Console) Write(p []byte) (int, error) {
	if c.addOutput(p) && c.cutLog != nil {
		c.cutLog()
	}
	return len(p), nil
}

// addOutput adds output, and reports whether the log has to be cut.
func (c *Console) addOutput(p []byte) (mustCut bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.history)+len(p) > 2*maxHistory {
		c.history = append([]byte(nil), c.history[max(0, len(c.history)-maxHistory):]...)
	}
	c.history = append(c.history, p[max(0, len(p)-maxHistory):]...)
	before := c.printed
	c.printed += int64(len(p))
	c.notifyReaders()
	return c.most > 0 && before/c.most != c.printed/c.most
}

// endOutput marks the end of the guest's output. left is closed once no session is open: sessions
// read the rest of the output before they close.
func (c *Console) endOutput() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isOver = true
	c.notifyReaders()
	if c.open == 0 {
		close(c.left)
	}
}

func (c *Console) notifyReaders() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// readAfter returns output that comes after a number of bytes, and where it ends. Where nothing is
// there yet, changed is closed once there is.
func (c *Console) readAfter(position int64, p []byte) (n int, end int64, changed <-chan struct{}, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	position = max(position, c.printed-int64(len(c.history)))
	n = copy(p, c.history[len(c.history)-int(c.printed-position):])
	if n == 0 && c.isOver {
		err = io.EOF
	}
	return n, position + int64(n), c.changed, err
}

// Open opens a session, which may type if it has the right to.
func (c *Console) Open(ctx context.Context, types bool) (io.ReadWriteCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if types && c.isTaken {
		return nil, failure.ErrTaken
	}
	if c.isOver {
		return nil, failure.ErrNotRunning
	}
	c.isTaken = c.isTaken || types
	c.open++
	s := &session{console: c, at: max(0, c.printed-tail), types: types}
	s.ctx, s.leave = context.WithCancel(ctx)
	s.close = sync.OnceFunc(s.giveUp)
	return s, nil
}

// writeInput sends what was typed to the guest. It waits for a guest that does not read.
func (c *Console) writeInput(ctx context.Context, p []byte) (int, error) {
	select {
	case c.typing <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { <-c.typing }()
	cut := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.line.SetWriteDeadline(time.Unix(1, 0))
		close(cut)
	})
	n, err := c.line.Write(p)
	if !stop() {
		<-cut
		_ = c.line.SetWriteDeadline(time.Time{}) // for those who type next
	}
	return n, err
}

// Left returns a channel that is closed once the guest has ended and nobody reads its console any more.
func (c *Console) Left() <-chan struct{} { return c.left }

// TypeFrom leads what comes from an input to the guest, until its end.
func (c *Console) TypeFrom(ctx context.Context, input io.Reader) error {
	_, err := io.Copy(typist{ctx, c}, input)
	return err
}

// typist types whatever it is given.
type typist struct {
	ctx     context.Context
	console *Console
}

// Write implements io.Writer.
func (t typist) Write(p []byte) (int, error) { return t.console.writeInput(t.ctx, p) }

// session is one attached client.
type session struct {
	console *Console
	ctx     context.Context // ends with the session
	leave   context.CancelFunc
	at      int64 // of the output that was read
	types   bool
	close   func()
}

// Read waits for output of the guest.
func (s *session) Read(p []byte) (int, error) {
	for len(p) > 0 {
		n, end, changed, err := s.console.readAfter(s.at, p)
		if s.at = end; n > 0 || err != nil {
			return n, err
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return 0, context.Cause(s.ctx)
		}
	}
	return 0, nil
}

// Write types.
func (s *session) Write(p []byte) (int, error) {
	if !s.types || s.ctx.Err() != nil {
		return 0, os.ErrClosed
	}
	return s.console.writeInput(s.ctx, p)
}

// Close ends the session.
func (s *session) Close() error {
	s.leave()
	s.close()
	return nil
}

func (s *session) giveUp() {
	c := s.console
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.types {
		c.isTaken = false
	}
	if c.open--; c.open == 0 && c.isOver {
		close(c.left)
	}
}
