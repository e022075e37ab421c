// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/guest/wire"
)

// Reasons why a caller may not write to the entrypoint.
var (
	errTaken = errors.New("another caller writes to the command")
	errEnded = errors.New("the input of the command has ended")
)

// Input is the input of the entrypoint. One caller at a time writes to it, and it stays open when the caller leaves.
type Input struct {
	ends     ends
	writer   chan struct{} // a semaphore
	hasEnded bool          // needs writer
}

// NewInput returns an input that is written to a file, which is nil if the entrypoint lacks an input. control is the
// terminal of the entrypoint, if it has one.
func NewInput(file, control *os.File) *Input {
	return &Input{ends: ends{input: file, output: control, terminal: control != nil}, writer: make(chan struct{}, 1)}
}

// serve takes sizes from a caller, and its input if it writes. It returns once the input has ended, or the caller has
// left: then what the entrypoint has not read of an input without an end is lost.
func (i *Input) serve(writes bool, frames *wire.Reader, out io.Writer) error {
	queue := newQueue()
	if !writes {
		i.ends.takeInput(frames, queue)
		return nil
	}
	if i.ends.input == nil {
		return errors.New("the command lacks an input")
	}
	select {
	case i.writer <- struct{}{}:
		defer func() { <-i.writer }()
	default:
		return errTaken
	}
	if i.hasEnded {
		return errEnded
	}
	if err := wire.WriteFrame(out, wire.FrameStdout, []byte{'\n'}); err != nil { // tells the caller that it may write
		return err
	}
	written, left := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(written)
		i.hasEnded = queue.write(&i.ends, out) && !i.ends.terminal
	}()
	go func() {
		defer close(left)
		i.ends.takeInput(frames, queue)
	}()
	select {
	case <-written:
	case <-left:
		if !queue.hasEnd() {
			_ = i.ends.input.SetWriteDeadline(time.Unix(1, 0))
		}
		<-written
		_ = i.ends.input.SetWriteDeadline(time.Time{})
	}
	return nil
}

// queue is the input that a program has not taken yet, at most wire.InputWindow bytes.
type queue struct {
	mu     sync.Mutex
	change *sync.Cond
	waits  []byte
	// sent is how many bytes have been added and not been reported as taken.
	sent            int
	ended, isClosed bool
}

func newQueue() *queue {
	q := &queue{}
	q.change = sync.NewCond(&q.mu)
	return q
}

// add adds input. It reports whether the host has kept to the window.
func (q *queue) add(p []byte) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sent+len(p) > wire.InputWindow {
		return false
	}
	q.sent += len(p)
	q.waits = append(q.waits, p...)
	q.change.Signal()
	return true
}

// end marks the end of the input.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended, q.isClosed = true, true
	q.change.Signal()
}

// close makes write return once it has passed on what waits. It does not end the input.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.isClosed = true
	q.change.Signal()
}

func (q *queue) hasEnd() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ended
}

// next returns what to write next, nil at the end.
func (q *queue) next() []byte {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.waits) == 0 {
		if q.isClosed {
			return nil
		}
		q.change.Wait()
	}
	n := min(len(q.waits), wire.MaxData)
	p := bytes.Clone(q.waits[:n])
	if q.waits = q.waits[n:]; len(q.waits) == 0 {
		q.waits = nil
	}
	return p
}

// write passes the input on to a program, and tells the host what it has taken. At the end of the input it ends that of
// the program, and returns true. Input that the program does not read is lost.
func (q *queue) write(s *ends, out io.Writer) (hasEnded bool) {
	isInLine := false
	for p := q.next(); p != nil; p = q.next() {
		if s.input != nil {
			_, _ = s.input.Write(p)
		}
		last := p[len(p)-1]
		isInLine = last != '\n' && last != '\r'
		q.mu.Lock()
		q.sent -= len(p)
		q.mu.Unlock()
		_ = wire.WriteFrame(out, wire.FrameTaken, binary.BigEndian.AppendUint32(nil, uint32(len(p)))) //nolint:gosec // at most wire.MaxData
	}
	if hasEnded = q.hasEnd(); hasEnded {
		s.endInput(isInLine)
	}
	return hasEnded
}
