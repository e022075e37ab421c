// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
)

// newLine returns a console, and the guest's end of its line.
func newLine() (c *Console, guest net.Conn) {
	own, guest := net.Pipe()
	return New(own), guest
}

func attach(t *testing.T, c *Console, types bool) io.ReadWriteCloser {
	t.Helper()
	s, err := c.Open(t.Context(), types)
	assert.NoError(t, err)
	return s
}

// TestLogIsCut checks that the log is cut before more of the guest's output is read, however fast the guest prints.
func TestLogIsCut(t *testing.T) {
	t.Parallel()
	const most, chunk, all = 1 << 10, 512, 100 << 10
	c, _ := newLine()
	log, printed := 0, 0
	c.LimitLog(most, func() { log = 0 })
	c.followOutput(readerFunc(func([]byte) (int, error) {
		assert.True(t, log <= most, "%d bytes are read after a log of %d", chunk, log)
		if printed == all {
			return 0, io.EOF
		}
		log, printed = log+chunk, printed+chunk
		return chunk, nil
	}))
}

// readerFunc is a function that reads.
type readerFunc func([]byte) (int, error)

// Read implements io.Reader.
func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

// TestConsoleReaders checks that every reader gets the last of the earlier output and all later
// output, that a session that does not read takes no memory and delays no other, and that all see the end.
func TestConsoleReaders(t *testing.T) {
	t.Parallel()
	c, _ := newLine()
	first, slow := attach(t, c, false), attach(t, c, false)
	line := strings.Repeat("x", 1023) + "\n"
	var printed bytes.Buffer
	read := make(chan string)
	go func() {
		all, err := io.ReadAll(first)
		assert.NoError(t, err)
		read <- string(all)
	}()
	for range 3 * maxHistory / len(line) {
		_, _ = io.WriteString(c, line)
		printed.WriteString(line)
	}
	late, latest := attach(t, c, false), attach(t, c, false)
	_, _ = io.WriteString(c, "last\n")
	c.endOutput()
	assert.ErrorIs(t, "a reader after the end", assert.ErrorOf(c.Open(t.Context(), false)), failure.ErrNotRunning)
	for name, r := range map[string]struct {
		of          io.Reader
		least, most int
	}{
		"late":   {late, tail + 5, tail + 5},
		"slow":   {slow, maxHistory, 2 * maxHistory},
		"latest": {latest, tail + 5, tail + 5},
	} {
		got, err := io.ReadAll(r.of)
		assert.True(t, err == nil && len(got) >= r.least && len(got) <= r.most && strings.HasSuffix(printed.String()+"last\n", string(got)),
			"%s: reads %d bytes, %v", name, len(got), err)
	}
	for n, session := range []io.ReadWriteCloser{first, slow, late, latest} {
		select {
		case <-c.left:
			t.Errorf("all have left when %d have", n)
		default:
		}
		assert.NoError(t, errors.Join(session.Close(), session.Close()))
	}
	<-c.left
	if got := <-read; !strings.HasSuffix(printed.String()+"last\n", got[max(0, len(got)-maxHistory):]) {
		t.Errorf("the first reads %d bytes, which end with %.80q", len(got), got[max(0, len(got)-80):])
	}
}

// TestConsoleWriters checks that one session at a time may type, beside the standard input, and that a
// guest which does not read keeps no session open.
func TestConsoleWriters(t *testing.T) {
	t.Parallel()
	c, guest := newLine()
	writer := attach(t, c, true)
	assert.ErrorIs(t, "another writer", assert.ErrorOf(c.Open(t.Context(), true)), failure.ErrTaken)
	if _, err := attach(t, c, false).Write([]byte("x")); err == nil {
		t.Error("a reader may type")
	}
	failed := make(chan error)
	go func() { failed <- assert.ErrorOf(writer.Write([]byte("for a guest that does not read"))) }()
	assert.NoError(t, writer.Close())
	assert.True(t, (<-failed) != nil, "a closed session has typed")
	next := attach(t, c, true)
	for name, typed := range map[string]func() error{
		"a session":          func() error { return assert.ErrorOf(io.WriteString(next, "typed")) },
		"the standard input": func() error { return c.TypeFrom(t.Context(), strings.NewReader("typed")) },
	} {
		go func() { failed <- typed() }()
		got := make([]byte, len("typed"))
		_, err := io.ReadFull(guest, got)
		assert.True(t, err == nil && string(got) == "typed", "%s: the guest reads %q, %v", name, got, err)
		assert.NoError(t, <-failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	waiting, err := c.Open(ctx, false)
	assert.NoError(t, err)
	go func() { failed <- assert.ErrorOf(waiting.Read(make([]byte, 1))) }()
	cancel()
	assert.ErrorIs(t, "a session whose caller has left reads", <-failed, context.Canceled)
}
