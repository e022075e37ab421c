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
	// maxUnread is how much output waits for its reader.
	maxUnread = 256 << 10
	// drainWithin is how long the last output may take to be read.
	drainWithin = 2 * time.Second
)

// output leads what the guest or this program prints to a writer that may be slow. Both would
// wait for a full pipe, so what the writer does not take in time is lost.
type output struct {
	mu     sync.Mutex
	more   *sync.Cond
	unread []byte
	lost   int
	over   bool
	done   chan struct{}
}

// newOutput returns an output that writes until it is closed. Then, and when all was written,
// done is closed.
func newOutput(writer io.Writer) *output {
	o := &output{done: make(chan struct{})}
	o.more = sync.NewCond(&o.mu)
	go o.writeTo(writer)
	return o
}

// copyFrom copies until the end of from, and closes the output.
func (o *output) copyFrom(reader io.Reader) {
	_, _ = io.CopyBuffer(struct{ io.Writer }{o}, reader, make([]byte, 4<<10))
	o.closeOutput()
}

// Write implements io.Writer. It does not wait.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := min(len(p), maxUnread-len(o.unread))
	o.unread = append(o.unread, p[:taken]...)
	o.lost += len(p) - taken
	o.more.Signal()
	return len(p), nil
}

func (o *output) closeOutput() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
	o.more.Signal()
}

// drainOutput waits a moment for readers to take what is left.
func drainOutput(unread []<-chan struct{}) {
	late := time.After(drainWithin)
	for _, read := range unread {
		select {
		case <-read:
		case <-late:
			return
		}
	}
}

func (o *output) writeTo(writer io.Writer) {
	defer close(o.done)
	for {
		text, ok := o.nextText()
		if !ok {
			return
		}
		if _, err := writer.Write(text); err != nil {
			writer = io.Discard // the guest runs on
		}
	}
}

// nextText waits for output. What was lost came after it.
func (o *output) nextText() (text []byte, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.unread) == 0 && !o.over {
		o.more.Wait()
	}
	text, o.unread = o.unread, nil
	if o.lost > 0 {
		text = fmt.Appendf(text, "\r\n[drover-machine: %d bytes were not read in time]\r\n", o.lost)
		o.lost = 0
	}
	return text, len(text) > 0
}

// makeRaw gives a guest the terminal, if there is one, which then gets every key.
func makeRaw(input *os.File) (restore func()) {
	fd := int(input.Fd())
	before, err := term.MakeRaw(fd)
	if err != nil {
		return func() {}
	}
	return func() { _ = term.Restore(fd, before) }
}
