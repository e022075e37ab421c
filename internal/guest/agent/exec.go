// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/internal/guest/wire"
)

// exec runs a program until it ends, or until the host leaves: then its session is ended.
func (a *Agent) exec(e wire.Exec, frames *wire.Reader, out io.Writer) (wire.Response, error) {
	command, err := a.commandOf(e)
	if err != nil {
		return wire.Response{}, err
	}
	ends, err := openEnds(e, command.User)
	if err != nil {
		return wire.Response{}, err
	}
	command.Files, command.Terminal = ends.theirs[:], e.TTY
	p, err := a.Table.Start(command)
	ends.closeTheirs()
	if err != nil {
		ends.closeOurs()
		return wire.Response{}, err
	}
	return ends.follow(p, frames, out), nil
}

// commandOf returns the command without its files.
func (a *Agent) commandOf(e wire.Exec) (process.Command, error) {
	name := a.Base.User
	if e.User != nil {
		name = *e.User
	}
	user, err := a.Lookup(name)
	if err != nil {
		return process.Command{}, err
	}
	defaults := append([]string{"HOME=" + user.Home}, a.Base.Defaults...)
	if e.TTY {
		defaults = append(defaults, "TERM=xterm")
	}
	c := process.Command{Args: e.Args, User: user, Dir: a.Base.Dir, Env: process.Environment(slices.Concat(a.Base.Env, e.Env), defaults...)}
	if e.WorkingDir != "" {
		c.Dir = e.WorkingDir
	}
	if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
		return c, fmt.Errorf("the working directory %.200q is not a folder of the guest", c.Dir)
	}
	c.Path, err = process.LookPath(e.Args[0], c.Dir, c.Env)
	return c, err
}

// ends are both ends of a program's input and output.
type ends struct {
	theirs [3]*os.File
	// input is nil for a program without input, errors for one with a terminal.
	input, output, errors *os.File
	terminal              bool
}

func openEnds(e wire.Exec, user users.User) (*ends, error) {
	if e.TTY {
		control, terminal, err := process.OpenTerminal(user)
		if err != nil {
			return nil, err
		}
		if err := process.SetSize(control, e.Size); err != nil {
			_, _ = control.Close(), terminal.Close()
			return nil, err
		}
		return &ends{theirs: [3]*os.File{terminal, terminal, terminal}, input: control, output: control, terminal: true}, nil
	}
	s := &ends{}
	var failed [3]error
	if e.Stdin {
		s.theirs[0], s.input, failed[0] = os.Pipe()
	} else {
		s.theirs[0], failed[0] = os.Open(os.DevNull)
	}
	s.output, s.theirs[1], failed[1] = os.Pipe()
	s.errors, s.theirs[2], failed[2] = os.Pipe()
	if err := errors.Join(failed[:]...); err != nil {
		s.closeTheirs()
		s.closeOurs()
		return nil, err
	}
	for _, f := range s.theirs { // so that a program of another user than root can open /dev/stdout
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeNamedPipe != 0 {
			_ = f.Chown(int(user.UID), int(user.GID))
		}
	}
	return s, nil
}

func (s *ends) closeTheirs() { closeAll(s.theirs[:]...) }

func (s *ends) closeOurs() { closeAll(s.input, s.output, s.errors) }

func closeAll(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// follow passes input and output on until the program has ended and all of its output was sent. A
// child of the program's that keeps the pipes open does not hold that back.
func (s *ends) follow(p *process.Process, frames *wire.Reader, out io.Writer) wire.Response {
	defer s.closeOurs()
	left := make(chan struct{})
	queue := newQueue()
	go queue.write(s, out)
	go func() {
		defer close(left)
		s.takeInput(frames, queue)
	}()
	outputs := []*pump{startPump(s.output, out, wire.FrameStdout)}
	if s.errors != nil {
		outputs = append(outputs, startPump(s.errors, out, wire.FrameStderr))
	}
	select {
	case <-p.Done():
	case <-left:
		s.closeOurs()
		go p.EndSession()
		return wire.Response{}
	}
	for _, o := range outputs {
		o.finish()
	}
	return wire.Response{Code: p.End().Code, Signal: p.End().Signal}
}

// takeInput adds the host's input to the queue until the host leaves, and sets the size of the terminal.
func (s *ends) takeInput(frames *wire.Reader, queue *queue) {
	defer queue.close()
	for {
		kind, payload, err := frames.Next()
		if err != nil {
			return
		}
		switch kind {
		case wire.FrameData:
			if !queue.add(payload) {
				return
			}
		case wire.FrameEnd:
			queue.end()
		case wire.FrameResize:
			var size wire.Size
			if json.Unmarshal(payload, &size) == nil && s.terminal {
				_ = process.SetSize(s.output, size)
			}
		default:
			return
		}
	}
}

// endOfTransmission is Ctrl-D.
var endOfTransmission = []byte{4}

// endInput closes a pipe. To a terminal it sends Ctrl-D: once at the beginning of a line, twice within a line.
func (s *ends) endInput(isInLine bool) {
	switch {
	case s.terminal:
		if isInLine {
			_, _ = s.input.Write(endOfTransmission)
		}
		_, _ = s.input.Write(endOfTransmission)
	case s.input != nil:
		_ = s.input.Close()
	}
}

// pump passes an output on.
type pump struct {
	from *os.File
	out  io.Writer
	kind wire.Kind
	done chan struct{}
}

func startPump(from *os.File, out io.Writer, kind wire.Kind) *pump {
	p := &pump{from: from, out: out, kind: kind, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		buffer := make([]byte, wire.MaxData)
		for {
			n, err := p.from.Read(buffer)
			if n > 0 && wire.WriteFrame(p.out, p.kind, buffer[:n]) != nil {
				return
			}
			if err != nil {
				return
			}
		}
	}()
	return p
}

// maxRest is the most that a pipe holds, in bytes (/proc/sys/fs/pipe-max-size). More has been written after the end.
const maxRest = 1 << 20

// finish passes on the output that the program wrote before its end.
func (p *pump) finish() {
	_ = p.from.SetReadDeadline(time.Unix(1, 0))
	<-p.done
	raw, err := p.from.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) {
		buffer := make([]byte, wire.MaxData)
		for rest := maxRest; rest > 0; {
			n, err := unix.Read(int(fd), buffer)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n <= 0 || wire.WriteFrame(p.out, p.kind, buffer[:n]) != nil {
				return
			}
			rest -= n
		}
	})
}
