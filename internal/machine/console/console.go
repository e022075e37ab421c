// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package console shares the serial console of one guest among clients, and limits its log.
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
	// maxHistory is how much of the last output is kept for sessions. A session that falls further
	// behind misses output.
	maxHistory = 256 << 10
	// tail is how much of the earlier output a new session reads first.
	tail = 4 << 10
)

// Console is the guest's serial console. Any number of sessions can read it, and one of them can write.
type Console struct {
	conn net.Conn // to QEMU
	// cutLog is called each time the guest has printed cutEvery more bytes, before more is read. That bounds the log,
	// since QEMU logs only output that this program has read. While no supervisor is connected, QEMU logs all output,
	// so the log grows without bound. cutLog is nil where there is no log.
	cutLog   func()
	cutEvery int64

	mu           sync.Mutex
	history      []byte        // the last output
	printed      int64         // all output until now, in bytes
	changed      chan struct{} // closed at the next output, and at the end
	isOver       bool
	hasWriter    bool // a session has the right to write
	sessionCount int
	left         chan struct{}

	writing chan struct{} // a semaphore for conn: writeInput may be called with and without a session
}

// New returns a Console on a connection to QEMU's serial socket. The caller runs Follow.
func New(conn net.Conn) *Console {
	return &Console{conn: conn, changed: make(chan struct{}), left: make(chan struct{}), writing: make(chan struct{}, 1)}
}

// LimitLog sets a function that cuts the log, to be called after each cutEvery bytes of output. It must be called
// before Follow.
func (c *Console) LimitLog(cutEvery int64, cutLog func()) { c.cutEvery, c.cutLog = cutEvery, cutLog }

// Follow reads the guest's output until QEMU ends. If nothing read it, QEMU would block the guest.
func (c *Console) Follow() { c.followOutput(c.conn) }

func (c *Console) followOutput(output io.Reader) {
	defer c.endOutput()
	_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{output}, make([]byte, 4<<10))
}

// Write adds output of the guest. It does not wait for sessions to read the output.
func (c *Console) Write(p []byte) (int, error) {
	if c.addOutput(p) && c.cutLog != nil {
		c.cutLog()
	}
	return len(p), nil
}

// addOutput adds output to the history, and reports whether the log must be cut.
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
	return c.cutEvery > 0 && before/c.cutEvery != c.printed/c.cutEvery
}

// endOutput marks the end of the guest's output. Open sessions still read the rest of it, so left is closed when the
// last session is.
func (c *Console) endOutput() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.isOver = true
	c.notifyReaders()
	if c.sessionCount == 0 {
		close(c.left)
	}
}

func (c *Console) notifyReaders() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// readAfter copies output from a position on into p, and returns the position of its end. If there is no
// output yet, the caller waits for changed and calls again.
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

// Open opens a session. Only one session at a time may be open with canWrite.
func (c *Console) Open(ctx context.Context, canWrite bool) (io.ReadWriteCloser, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if canWrite && c.hasWriter {
		return nil, failure.ErrTaken
	}
	if c.isOver {
		return nil, failure.ErrNotRunning
	}
	c.hasWriter = c.hasWriter || canWrite
	c.sessionCount++
	s := &session{console: c, position: max(0, c.printed-tail), canWrite: canWrite}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.closeOnce = sync.OnceFunc(s.closeSession)
	return s, nil
}

// writeInput sends input to the guest. It waits while the guest does not read, until ctx ends.
func (c *Console) writeInput(ctx context.Context, p []byte) (int, error) {
	select {
	case c.writing <- struct{}{}:
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
	defer func() { <-c.writing }()
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	n, err := c.conn.Write(p)
	if !stop() {
		<-interrupted
		_ = c.conn.SetWriteDeadline(time.Time{}) // for the next writer
	}
	return n, err
}

// Left returns a channel that is closed once the guest has ended and all sessions are closed.
func (c *Console) Left() <-chan struct{} { return c.left }

// TypeFrom copies input to the guest until the input ends.
func (c *Console) TypeFrom(ctx context.Context, input io.Reader) error {
	_, err := io.Copy(inputWriter{ctx, c}, input)
	return err
}

// inputWriter writes to the guest until ctx ends.
type inputWriter struct {
	ctx     context.Context
	console *Console
}

// Write implements io.Writer.
func (w inputWriter) Write(p []byte) (int, error) { return w.console.writeInput(w.ctx, p) }

// session is one attached client.
type session struct {
	console   *Console
	ctx       context.Context // ends with the session
	cancel    context.CancelFunc
	position  int64 // of the next output to read
	canWrite  bool
	closeOnce func()
}

// Read waits for output of the guest.
func (s *session) Read(p []byte) (int, error) {
	for len(p) > 0 {
		n, end, changed, err := s.console.readAfter(s.position, p)
		if s.position = end; n > 0 || err != nil {
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

// Write sends input to the guest.
func (s *session) Write(p []byte) (int, error) {
	if !s.canWrite || s.ctx.Err() != nil {
		return 0, os.ErrClosed
	}
	return s.console.writeInput(s.ctx, p)
}

// Close ends the session.
func (s *session) Close() error {
	s.cancel()
	s.closeOnce()
	return nil
}

func (s *session) closeSession() {
	c := s.console
	c.mu.Lock()
	defer c.mu.Unlock()
	if s.canWrite {
		c.hasWriter = false
	}
	if c.sessionCount--; c.sessionCount == 0 && c.isOver {
		close(c.left)
	}
}
