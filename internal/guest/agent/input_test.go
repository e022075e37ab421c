// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/test/assert"
)

// writer writes to the entrypoint until it leaves.
type writer struct {
	*io.PipeWriter

	leave context.CancelFunc
	ended chan error
}

// startWriter returns a writer that may write, once the one before has left.
func startWriter(t *testing.T, c *client.Client) (w *writer) {
	t.Helper()
	assert.Eventually(t, "the input to be free", func(testing.TB) error {
		ctx, leave := context.WithCancel(t.Context())
		stdin, in := io.Pipe()
		ready, out := io.Pipe()
		next := &writer{in, leave, make(chan error, 1)}
		w = next
		go func() {
			err := c.SendInput(ctx, client.Command{Stdin: stdin, Stdout: out})
			_ = out.CloseWithError(err)
			next.ended <- err
		}()
		return readUntil(ready, "\n")
	})
	return w
}

func (w *writer) wantEnd(t *testing.T, kind error) {
	t.Helper()
	assert.ErrorIs(t, "the end of a writer", assert.Receive(t, "the end of a writer", w.ended), kind)
}

func sendInput(t *testing.T, c *client.Client, input []byte) error {
	t.Helper()
	return c.SendInput(t.Context(), client.Command{Stdin: bytes.NewReader(input), Stdout: io.Discard})
}

// TestInput checks that one caller at a time writes to the entrypoint, and that only the end of an input ends it, which a
// caller's leaving, a lost connection and a failing reader are not.
func TestInput(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	assert.NoError(t, err)
	p := serve(t, NewInput(write, nil))
	c := dial(t, p)
	letter := make([]byte, 1)
	for range 3 {
		w := startWriter(t, c)
		assert.NoError(t, assert.ErrorOf(io.WriteString(w, "x")))
		assert.NoError(t, assert.ErrorOf(io.ReadFull(read, letter)))
		assert.ErrorIs(t, "another writer", sendInput(t, c, nil), client.ErrTaken)
		_ = w.CloseWithError(io.ErrUnexpectedEOF)
		w.leave()
		w.wantEnd(t, context.Canceled)
		w = startWriter(t, c)
		_ = c.Close()
		w.wantEnd(t, client.ErrLost)
		c = dial(t, p)
	}
	input, got := bytes.Repeat([]byte("0123456789abcdef"), 1<<16), make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(read)
		got <- all
	}()
	assert.Eventually(t, "the input to be free", func(testing.TB) error { return sendInput(t, c, input) })
	assert.True(t, bytes.Equal(assert.Receive(t, "the input", got), input), "the input was changed")
	assert.ErrorIs(t, "after the end", sendInput(t, c, nil), client.ErrEnded)
}

// TestUnreadInput checks that a caller who leaves an entrypoint that does not read does not keep others from writing, that
// the agent keeps none of the input, and that an input that has ended is written whole after its caller has left.
func TestUnreadInput(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	assert.NoError(t, err)
	input := NewInput(write, nil)
	c := dial(t, serve(t, input))
	w := startWriter(t, c)
	assert.NoError(t, assert.ErrorOf(w.Write(make([]byte, wire.InputWindow))))
	w.leave()
	w.wantEnd(t, context.Canceled)
	w = startWriter(t, c)
	w.leave()
	w.wantEnd(t, context.Canceled)
	var last bytes.Buffer
	chunk := bytes.Repeat([]byte{'x'}, wire.MaxData)
	assert.NoError(t, errors.Join(wire.WriteFrame(&last, wire.FrameData, chunk), wire.WriteFrame(&last, wire.FrameData, chunk), wire.WriteFrame(&last, wire.FrameEnd, nil)))
	written := make(chan error, 1)
	go func() {
		input.writer <- struct{}{} // once the writer before has left
		<-input.writer
		written <- input.serve(true, &wire.Reader{R: &last}, io.Discard)
	}()
	all, err := io.ReadAll(read)
	assert.NoError(t, err)
	assert.NoError(t, assert.Receive(t, "the end of the input", written))
	zeros := bytes.Count(all, []byte{0})
	assert.True(t, zeros < wire.InputWindow/2 && len(all)-zeros == 2*wire.MaxData, "%d bytes of the first and %d of the last input come", zeros, len(all)-zeros)
}

// TestInputOfTerminal checks that sizes and input reach a terminal, beside a caller who writes, and its end too.
func TestInputOfTerminal(t *testing.T) {
	t.Parallel()
	control, terminal, err := process.OpenTerminal(users.User{UID: uint32(os.Getuid())}) //nolint:gosec // an ID
	assert.NoError(t, err)
	c := dial(t, serve(t, NewInput(control, control)))
	w := startWriter(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sizes := make(chan wire.Size, 1)
	sizes <- wire.Size{Rows: 7, Columns: 90}
	go func() { _ = c.SendInput(ctx, client.Command{Stdout: io.Discard, Resize: sizes}) }()
	assert.Eventually(t, "the size", func(testing.TB) error {
		size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
		assert.NoError(t, err)
		return assert.ErrorUnless(size.Row == 7 && size.Col == 90, "it is %+v", size)
	})
	assert.NoError(t, assert.ErrorOf(io.WriteString(w, "a line\nunfinished")))
	assert.NoError(t, w.Close())
	w.wantEnd(t, nil)
	text, err := io.ReadAll(terminal)
	assert.True(t, err == nil && string(text) == "a line\nunfinished", "the terminal reads %q, %v", text, err)
}
