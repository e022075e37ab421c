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

// Terminal is the terminal that a person sits at.
type Terminal struct{ in, out *os.File }

// OpenTerminal returns the terminal of the given streams, or nil if they are not both one.
func OpenTerminal(in io.Reader, out io.Writer) *Terminal {
	i, isFile := in.(*os.File)
	o := printable.File(out)
	if !isFile || o == nil || !term.IsTerminal(int(i.Fd())) || !term.IsTerminal(int(o.Fd())) {
		return nil
	}
	return &Terminal{in: i, out: o}
}

// MakeRaw passes every key on as it is, Ctrl-C included, until restore is called.
func (t *Terminal) MakeRaw() (restore func(), err error) {
	state, err := term.MakeRaw(int(t.in.Fd()))
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(int(t.in.Fd()), state) }, nil
}

// WatchSize returns the sizes that the terminal has, beginning with the current one, until
// ctx ends.
func (t *Terminal) WatchSize(ctx context.Context) remotecommand.TerminalSizeQueue {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	context.AfterFunc(ctx, func() { signal.Stop(changed) })
	changed <- syscall.SIGWINCH
	return &sizes{ctx: ctx, terminal: t, changed: changed}
}

// sizes implements remotecommand.TerminalSizeQueue.
type sizes struct {
	ctx      context.Context
	terminal *Terminal
	changed  chan os.Signal
}

// Next waits for the next size, and returns nil at the end.
func (s *sizes) Next() *remotecommand.TerminalSize {
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
