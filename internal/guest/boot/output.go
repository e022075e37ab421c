// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"errors"
	"io"
	"os"
	"sync"

	"cloudnative.tw/drover/internal/guest/users"
)

// chunk is how much output is passed on at a time.
const chunk = 64 << 10

// output is a stream of the entrypoint: a pipe whose content is passed on to a port. The port itself could be opened only
// once, and programs open /dev/stdout.
type output struct {
	port, pipe *os.File
}

// openPipe makes the pipe, and returns the end of the entrypoint. A program of a user can open it by /dev/stdout.
func (o *output) openPipe(u users.User) (theirs *os.File, err error) {
	if o.pipe, theirs, err = os.Pipe(); err != nil {
		return nil, err
	}
	return theirs, theirs.Chown(int(u.UID), int(u.GID))
}

// copyAll passes the output on until all that write to it have ended, and waits while it is held back.
func (o *output) copyAll(g *gate) {
	buffer := make([]byte, chunk)
	for {
		n, err := o.pipe.Read(buffer)
		g.wait()
		if n > 0 {
			_, failed := o.port.Write(buffer[:n])
			warn(failed)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				warn(err)
			}
			return
		}
	}
}

// gate is closed while anyone holds the output back. The entrypoint waits then, once its pipe is full.
type gate struct {
	mu      sync.Mutex
	holders int
	opened  chan struct{} // closed when the last holder leaves; nil while nobody holds the output back
	isOver  bool
}

// hold closes the gate until release is called.
func (g *gate) hold() (release func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holders++; g.holders == 1 && !g.isOver {
		g.opened = make(chan struct{})
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.holders--; g.holders == 0 {
			g.open()
		}
	}
}

// open needs mu.
func (g *gate) open() {
	if g.opened != nil {
		close(g.opened)
		g.opened = nil
	}
}

// keepOpen opens the gate. From then on hold does not close it.
func (g *gate) keepOpen() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.isOver = true
	g.open()
}

// wait waits while the gate is closed.
func (g *gate) wait() {
	g.mu.Lock()
	opened := g.opened
	g.mu.Unlock()
	if opened != nil {
		<-opened
	}
}
