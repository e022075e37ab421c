// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bytes"
	"context"
	"io"
)

// LeaveKey is the key that leaves a console: Ctrl-].
const LeaveKey = 0x1d

// keptChunks is how many reads of the keyboard wait for a connection.
const keptChunks = 64

// Keyboard reads what a person types, or a pipe, for one connection after another. A separate
// reader for each connection could not be interrupted, and would take the next key.
type Keyboard struct {
	typed chan []byte
	left  chan struct{} // closed once LeaveKey was typed
	turn  chan struct{} // has room for the one that may use typed and rest
	rest  []byte
}

// ReadKeyboard starts reading. If in is a terminal, LeaveKey ends it and is not passed on.
// Keys that are typed while nothing reads them are lost; the input of a pipe is kept.
func ReadKeyboard(in io.Reader, isTerminal bool) *Keyboard {
	k := &Keyboard{typed: make(chan []byte, keptChunks), left: make(chan struct{}), turn: make(chan struct{}, 1)}
	go k.run(in, isTerminal)
	return k
}

func (k *Keyboard) run(in io.Reader, isTerminal bool) {
	defer close(k.typed)
	for {
		chunk := make([]byte, 4<<10)
		n, err := in.Read(chunk)
		chunk, left := chunk[:n], false
		if isTerminal {
			chunk, _, left = bytes.Cut(chunk, []byte{LeaveKey})
		}
		if len(chunk) > 0 {
			k.keepInput(chunk, isTerminal)
		}
		if left {
			close(k.left)
			return
		}
		if err != nil {
			return
		}
	}
}

func (k *Keyboard) keepInput(chunk []byte, mayDrop bool) {
	if !mayDrop {
		k.typed <- chunk
		return
	}
	select {
	case k.typed <- chunk:
	default:
	}
}

// Drop forgets what was typed and not sent. The reader of an earlier connection, if there is
// one, must have ended or be about to end.
func (k *Keyboard) Drop() {
	k.turn <- struct{}{}
	defer func() { <-k.turn }()
	k.rest = nil
	for {
		select {
		case _, more := <-k.typed:
			if more {
				continue
			}
		default:
		}
		return
	}
}

// Left is closed once the person has left.
func (k *Keyboard) Left() <-chan struct{} { return k.left }

// For returns a reader that ends with ctx. Only one may be in use.
func (k *Keyboard) For(ctx context.Context) io.Reader { return &keys{ctx: ctx, keyboard: k} }

type keys struct {
	ctx      context.Context
	keyboard *Keyboard
}

// Read implements io.Reader. What it has when ctx ends is left to the next reader.
func (r *keys) Read(p []byte) (int, error) {
	k := r.keyboard
	select {
	case <-r.ctx.Done():
		return 0, io.EOF
	case k.turn <- struct{}{}:
	}
	defer func() { <-k.turn }()
	if len(k.rest) == 0 {
		select {
		case <-r.ctx.Done():
			return 0, io.EOF
		case chunk, more := <-k.typed:
			if !more {
				return 0, io.EOF
			}
			k.rest = chunk
		}
	}
	if r.ctx.Err() != nil {
		return 0, io.EOF
	}
	n := copy(p, k.rest)
	k.rest = k.rest[n:]
	return n, nil
}
