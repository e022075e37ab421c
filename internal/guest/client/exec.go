// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"cloudnative.tw/drover/internal/guest/wire"
)

// Command is a program to run beside the entrypoint.
type Command struct {
	// Exec is sent to the guest. Its field Stdin is derived from Stdin below.
	wire.Exec

	// Stdin is nil for a command without input. It is read until io.EOF. A Read may go on when Exec
	// has returned, and its caller ends it.
	Stdin io.Reader
	// Stdout and Stderr receive the output. Neither is nil, but Stderr for a command with a terminal.
	Stdout, Stderr io.Writer
	// Resize has new sizes of the terminal; nil for none.
	Resize <-chan wire.Size
}

// Exit is how a command has ended.
type Exit struct {
	// Code is 0 to 255, 128 and the signal's number for a command that a signal ended.
	Code, Signal int
}

// ErrEndUnknown means that the connection was lost while the command ran. The guest hangs up on it.
var ErrEndUnknown = errors.New("how the command ends is not known")

// Exec runs a command until it ends. If ctx ends before, the guest sends SIGHUP to its process group.
func (c *Client) Exec(ctx context.Context, command Command) (Exit, error) {
	command.Exec.Stdin = command.Stdin != nil
	k, err := c.begin(ctx, wire.Request{Op: wire.OpExec, Exec: &command.Exec})
	if err != nil {
		return Exit{}, err
	}
	defer k.end()
	window := newWindow()
	defer window.close()
	if command.Stdin != nil {
		go k.sendInput(command.Stdin, window)
	}
	if command.Resize != nil {
		go k.sendSizes(command.Resize)
	}
	for {
		kind, payload, err := k.next(ctx)
		if err != nil {
			return Exit{}, fmt.Errorf("%w: %w", ErrEndUnknown, err)
		}
		if kind == wire.FrameResponse {
			return exitOf(payload)
		}
		if err := command.take(kind, payload, window); err != nil {
			return Exit{}, err
		}
	}
}

// take passes a frame on.
func (c Command) take(kind wire.Kind, payload []byte, window *window) error {
	var err error
	switch {
	case kind == wire.FrameStdout:
		_, err = c.Stdout.Write(payload)
	case kind == wire.FrameStderr && c.Stderr != nil:
		_, err = c.Stderr.Write(payload)
	case kind == wire.FrameTaken && len(payload) == 4 && window.give(int(binary.BigEndian.Uint32(payload))):
	default:
		err = fmt.Errorf("%w: a frame of kind %d during a command", ErrBadAnswer, kind)
	}
	return err
}

func exitOf(payload []byte) (Exit, error) {
	r, err := response(payload)
	if err != nil {
		return Exit{}, err
	}
	if r.Code < 0 || r.Code > 255 || r.Signal < 0 || r.Signal > 64 || r.Signal != 0 && r.Code != 128+r.Signal {
		return Exit{}, fmt.Errorf("%w: %w: code %d, signal %d", ErrEndUnknown, ErrBadAnswer, r.Code, r.Signal)
	}
	return Exit{Code: r.Code, Signal: r.Signal}, nil
}

// sendInput sends input, as far as the program takes it.
func (k *call) sendInput(from io.Reader, window *window) {
	buffer := make([]byte, wire.MaxData)
	for {
		n, err := from.Read(buffer)
		if n > 0 && (!window.take(n) || wire.WriteFrame(k.stream, wire.FrameData, buffer[:n]) != nil) {
			return
		}
		if err != nil { // the end, or what the caller knows better than the guest
			_ = wire.WriteFrame(k.stream, wire.FrameEnd, nil)
			return
		}
	}
}

func (k *call) sendSizes(sizes <-chan wire.Size) {
	for {
		select {
		case size, open := <-sizes:
			if !open || wire.WriteJSON(k.stream, wire.FrameResize, size) != nil {
				return
			}
		case <-k.over:
			return
		}
	}
}

// window is how much more input may be sent.
type window struct {
	mu     sync.Mutex
	change *sync.Cond
	left   int
	closed bool
}

func newWindow() *window {
	w := &window{left: wire.InputWindow}
	w.change = sync.NewCond(&w.mu)
	return w
}

// take waits until n bytes may be sent. It returns false once the command has ended.
func (w *window) take(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.left < n && !w.closed {
		w.change.Wait()
	}
	w.left -= n
	return !w.closed
}

// give takes the guest's word that a program has taken n bytes. It reports whether that can be.
func (w *window) give(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < 0 || n > wire.InputWindow-w.left {
		return false
	}
	w.left += n
	w.change.Signal()
	return true
}

func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.change.Signal()
}
