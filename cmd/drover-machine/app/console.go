// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

const (
	// maxUnread is how many bytes of output are buffered.
	maxUnread = 256 << 10
	// drainWithin is how long readers may take to read the last output.
	drainWithin = 2 * time.Second
)

// outputBuffer copies the output of the guest, or of this program, to a writer that may be slow. When its
// buffer is full it drops output, since the guest or the program would otherwise wait.
type outputBuffer struct {
	mu       sync.Mutex
	changed  *sync.Cond
	unread   []byte
	lost     int // bytes
	isClosed bool
	done     chan struct{}
}

// newOutputBuffer returns a buffer. Its channel done is closed once the buffer has been closed and all
// its output has been written.
func newOutputBuffer(writer io.Writer) *outputBuffer {
	o := &outputBuffer{done: make(chan struct{})}
	o.changed = sync.NewCond(&o.mu)
	go o.writeTo(writer)
	return o
}

// copyFrom copies until the end of reader, and closes the buffer.
func (o *outputBuffer) copyFrom(reader io.Reader) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{o}, reader, make([]byte, 4<<10))
	o.closeOutput()
}

// Write implements io.Writer. It does not wait.
func (o *outputBuffer) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	kept := min(len(p), maxUnread-len(o.unread))
	o.unread = append(o.unread, p[:kept]...)
	o.lost += len(p) - kept
	o.changed.Signal()
	return len(p), nil
}

func (o *outputBuffer) closeOutput() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.isClosed = true
	o.changed.Signal()
}

// waitDrained waits until all channels are closed, for at most drainWithin.
func waitDrained(drained []<-chan struct{}) {
	deadline := time.After(drainWithin)
	for _, done := range drained {
		select {
		case <-done:
		case <-deadline:
			return
		}
	}
}

func (o *outputBuffer) writeTo(writer io.Writer) {
	defer close(o.done)
	for {
		text, ok := o.nextText()
		if !ok {
			return
		}
		if _, err := writer.Write(text); err != nil {
			writer = io.Discard // keep draining, so that the guest does not block
		}
	}
}

// nextText waits for output. It reports lost output after the buffered output, which is older.
func (o *outputBuffer) nextText() (text []byte, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.unread) == 0 && !o.isClosed {
		o.changed.Wait()
	}
	text, o.unread = o.unread, nil
	if o.lost > 0 {
		text = fmt.Appendf(text, "\r\n[drover-machine: %d bytes were not read in time]\r\n", o.lost)
		o.lost = 0
	}
	return text, len(text) > 0
}

// makeRaw sets a terminal to raw mode, so that the guest receives every key. It does nothing if input is not a terminal.
func makeRaw(input *os.File) (restore func()) {
	fd := int(input.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return func() {}
	}
	return func() { _ = term.Restore(fd, before) }
}
