// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"cloudnative.tw/drover/internal/machine"
)

// maxUnread is how much of the guest's output waits for its reader.
const maxUnread = 256 << 10

// output leads what the guest prints to a writer that may be slow. QEMU and its guest would
// wait for a full pipe, so what the writer does not take in time is lost.
type output struct {
	mu     sync.Mutex
	more   *sync.Cond
	unread []byte
	lost   int
	over   bool
	done   chan struct{}
}

// startOutput copies until the end of from. Then, and when all was written, done is closed.
func startOutput(from io.Reader, to io.Writer) *output {
	o := &output{done: make(chan struct{})}
	o.more = sync.NewCond(&o.mu)
	go o.read(from)
	go o.write(to)
	return o
}

func (o *output) read(from io.Reader) {
	buffer := make([]byte, 4<<10)
	for {
		n, err := from.Read(buffer)
		o.mu.Lock()
		taken := min(n, maxUnread-len(o.unread))
		o.unread = append(o.unread, buffer[:taken]...)
		o.lost += n - taken
		o.over = err != nil
		o.more.Signal()
		o.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (o *output) write(to io.Writer) {
	defer close(o.done)
	for {
		text, ok := o.next()
		if !ok {
			return
		}
		if _, err := to.Write(text); err != nil {
			to = io.Discard // the guest runs on
		}
	}
}

// next waits for output. What was lost came after it.
func (o *output) next() (text []byte, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.unread) == 0 && !o.over {
		o.more.Wait()
	}
	text, o.unread = o.unread, nil
	if o.lost > 0 {
		text = fmt.Appendf(text, "\r\n[drover-machine: %d bytes of the console were not read in time]\r\n", o.lost)
		o.lost = 0
	}
	return text, len(text) > 0
}

// typeIn leads what comes to the standard input to the guest, until its end. QEMU has one line
// for all who are attached.
func typeIn(ctx context.Context, m machine.Machine, input io.Reader) error {
	first := make([]byte, 1<<10)
	n, err := input.Read(first)
	if err != nil {
		return nil // there is no input
	}
	line, err := m.DialSerial(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = line.Close() }()
	// What the guest prints comes here too, and must be read, or else QEMU would block it.
	go func() { _, _ = io.Copy(io.Discard, line) }()
	if _, err := line.Write(first[:n]); err != nil {
		return err
	}
	_, err = io.Copy(line, input)
	return err
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
