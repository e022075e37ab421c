// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"
	"k8s.io/client-go/tools/remotecommand"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Terminal is the terminal of the user.
type Terminal struct{ in, out *os.File }

// OpenTerminal returns the terminal of the given streams, or nil if one of them is not a terminal.
func OpenTerminal(in io.Reader, out io.Writer) *Terminal {
	i, isFile := in.(*os.File)
	o := printable.File(out)
	if !isFile || o == nil || !term.IsTerminal(int(i.Fd())) || !term.IsTerminal(int(o.Fd())) {
		return nil
	}
	return &Terminal{in: i, out: o}
}

// OpenInput returns the terminal from which in reads, or nil if it is not a terminal.
func OpenInput(in io.Reader) *Terminal {
	file, _ := in.(*os.File)
	return OpenTerminal(in, file)
}

// MakeRaw makes the terminal pass every key to the program, Ctrl-C included, until restore is called.
func (t *Terminal) MakeRaw() (restore func(), err error) {
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(t.in.Fd()), state) }, nil
}

// WatchSize returns a queue of the terminal's sizes, beginning with the current size, until ctx ends.
func (t *Terminal) WatchSize(ctx context.Context) remotecommand.TerminalSizeQueue {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(changed) })
	changed <- syscall.SIGWINCH
	return &sizeQueue{ctx: ctx, terminal: t, changed: changed}
}

// sizeQueue implements remotecommand.TerminalSizeQueue.
type sizeQueue struct {
	ctx      context.Context
	terminal *Terminal
	changed  chan os.Signal
}

// Next waits for the next size, and returns nil when ctx has ended.
func (s *sizeQueue) Next() *remotecommand.TerminalSize {
	for {
		select {
		case <-s.ctx.Done():
			return nil
		case <-s.changed:
			width, height, err := term.GetSize(int(s.terminal.out.Fd()))
			if err == nil && width > 0 && height > 0 {
				return &remotecommand.TerminalSize{Width: uint16(min(width, 1<<16-1)), Height: uint16(min(height, 1<<16-1))}
			}
		}
	}
}
