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
	// Exec is sent to the guest. Its field Stdin is set from Stdin below.
	wire.Exec

	// Stdin is nil for a command without input. A call of its Read may go on after Exec has returned:
	// the caller must end it.
	Stdin io.Reader
	// Stdout and Stderr receive the output. Stderr may be nil for a command with a terminal.
	Stdout, Stderr io.Writer
	// Resize receives new sizes of the terminal; it may be nil.
	Resize <-chan wire.Size
}

// Exit is how a command has ended.
type Exit struct {
	// Code is 0 to 255. If a signal ended the command, Code is 128 plus the signal's number.
	Code, Signal int
}

// ErrEndUnknown means that the connection was lost while the command ran. The guest then ends the command.
var ErrEndUnknown = errors.New("how the command ends is not known")

// Exec runs a command until it ends. If ctx ends before, the guest ends its session: by SIGHUP, and 2 s later by
// SIGKILL.
func (c *Client) Exec(ctx context.Context, command Command) (Exit, error) {
	return c.exec(ctx, wire.OpExec, command)
}

// SendInput sends input, if there is one, and sizes to the entrypoint, until the input has ended or ctx ends. It writes a
// byte to Stdout once the guest takes its input. Only io.EOF of Stdin ends the entrypoint's input.
func (c *Client) SendInput(ctx context.Context, command Command) error {
	_, err := c.exec(ctx, wire.OpInput, command)
	return err
}

func (c *Client) exec(ctx context.Context, op string, command Command) (Exit, error) {
	command.Exec.Stdin = command.Stdin != nil
	call, err := c.begin(ctx, wire.Request{Op: op, Exec: &command.Exec})
	if err != nil {
		return Exit{}, err
	}
	defer call.end()
	window := newWindow()
	defer window.close()
	if command.Stdin != nil {
		go call.sendInput(command.Stdin, window, op == wire.OpInput)
	}
	if command.Resize != nil {
		go call.sendSizes(command.Resize)
	}
	for {
		kind, payload, err := call.next(ctx)
		if err != nil {
			return Exit{}, fmt.Errorf("%w: %w", ErrEndUnknown, err)
		}
		if kind == wire.FrameResponse {
			return exitOf(payload)
		}
		if err := command.handleFrame(kind, payload, window); err != nil {
			return Exit{}, err
		}
	}
}

// handleFrame writes output, or enlarges the window for input.
func (c Command) handleFrame(kind wire.Kind, payload []byte, window *window) error {
	var err error
	switch {
	case kind == wire.FrameStdout:
		_, err = c.Stdout.Write(payload)
	case kind == wire.FrameStderr && c.Stderr != nil:
		_, err = c.Stderr.Write(payload)
	case kind == wire.FrameTaken && len(payload) == 4 && window.enlarge(int(binary.BigEndian.Uint32(payload))):
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
	isInconsistent := r.Signal != 0 && r.Code != 128+r.Signal
	if r.Code < 0 || r.Code > 255 || r.Signal < 0 || r.Signal > 64 || isInconsistent {
		return Exit{}, fmt.Errorf("%w: %w: code %d, signal %d", ErrEndUnknown, ErrBadAnswer, r.Code, r.Signal)
	}
	return Exit{Code: r.Code, Signal: r.Signal}, nil
}

// sendInput sends input. It waits for the window while the program does not read. An error of the caller's reader ends the
// input as io.EOF does, unless the input outlasts the call.
func (k *call) sendInput(input io.Reader, window *window, outlasts bool) {
	buffer := make([]byte, wire.MaxData)
	for {
		n, err := input.Read(buffer)
		if n > 0 && (!window.take(n) || wire.WriteFrame(k.stream, wire.FrameData, buffer[:n]) != nil) {
			return
		}
		if err != nil && outlasts && !errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
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

// window is how many bytes of input may be sent: see wire.InputWindow.
type window struct {
	mu      sync.Mutex
	changed *sync.Cond
	size    int
	closed  bool
}

func newWindow() *window {
	w := &window{size: wire.InputWindow}
	w.changed = sync.NewCond(&w.mu)
	return w
}

// take waits until n bytes may be sent. It returns false once the command has ended.
func (w *window) take(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for w.size < n && !w.closed {
		w.changed.Wait()
	}
	w.size -= n
	return !w.closed
}

// enlarge adds n bytes that the program has read, by the guest's report. It returns false if that many bytes
// were not sent.
func (w *window) enlarge(n int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < 0 || n > wire.InputWindow-w.size {
		return false
	}
	w.size += n
	w.changed.Signal()
	return true
}

func (w *window) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	w.changed.Signal()
}
