// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package boot

import (
	"errors"
	"io"
	"os"
	"sync"
	"syscall"

	"cloudnative.tw/drover/internal/guest/agent"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/users"
)

// openStreams opens both ends of the entrypoint's standard streams, and sets the entrypoint's files.
func (m *machine) openStreams(c *process.Command) error {
	if m.config.TTY {
		return m.openTerminal(c)
	}
	theirs, err := m.openInput(c.User)
	if err != nil {
		return err
	}
	c.Files = []*os.File{theirs}
	for stream := range m.output {
		theirs, err := m.output[stream].openPipe(c.User)
		if err != nil {
			return err
		}
		c.Files = append(c.Files, theirs)
	}
	return nil
}

// openTerminal opens a terminal for the three streams. Its output goes to the port of standard output.
func (m *machine) openTerminal(c *process.Command) error {
	control, terminal, err := process.OpenTerminal(c.User)
	if err != nil {
		return err
	}
	m.output[0].pipe = control
	m.input = agent.NewInput(nil, control)
	if m.config.Stdin {
		m.input = agent.NewInput(control, control)
	}
	c.Files, c.Terminal = []*os.File{terminal, terminal, terminal}, true
	return nil
}

// openInput returns the end of the entrypoint, which is empty for one without an input.
func (m *machine) openInput(u users.User) (theirs *os.File, err error) {
	m.input = agent.NewInput(nil, nil)
	if !m.config.Stdin {
		return os.Open(os.DevNull)
	}
	theirs, ours, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	m.input = agent.NewInput(ours, nil)
	return theirs, theirs.Chown(int(u.UID), int(u.GID))
}

// chunk is how much output is passed on at a time.
const chunk = 64 << 10

// output is a stream of the entrypoint: a pipe or terminal whose content is passed on to a port. The port itself could be
// opened only once, and programs open /dev/stdout. pipe is nil for standard error of a program with a terminal.
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
	if o.pipe == nil {
		return
	}
	buffer := make([]byte, chunk)
	for {
		n, err := o.pipe.Read(buffer)
		g.wait()
		if n > 0 {
			_, failed := o.port.Write(buffer[:n])
			warn(failed)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.EIO) { // EIO ends a terminal
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
