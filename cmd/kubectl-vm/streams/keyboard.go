// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"bytes"
	"context"
	"io"
)

// LeaveKey is the key with which a user leaves a console: Ctrl-].
const LeaveKey = 0x1d

// maxChunks is how many chunks of input are kept while no connection reads them.
const maxChunks = 64

// Keyboard reads a terminal or a pipe for one connection after another. If each connection read the
// terminal itself, a read of an ended connection could not be interrupted, and would take the next key.
type Keyboard struct {
	typed    chan []byte
	detached chan struct{} // closed once LeaveKey was typed
	lock     chan struct{} // has an element while someone uses typed and rest
	rest     []byte        // of the last chunk from typed
}

// ReadKeyboard starts reading. If in is a terminal, nothing is read after LeaveKey, and keys beyond maxChunks
// are lost while nothing reads them. LeaveKey does not end the input, because the VM would see that end too, as Ctrl-D.
// The input of a pipe is never lost.
func ReadKeyboard(in io.Reader, isTerminal bool) *Keyboard {
	k := &Keyboard{typed: make(chan []byte, maxChunks), detached: make(chan struct{}), lock: make(chan struct{}, 1)}
	go k.readInput(in, isTerminal)
	return k
}

func (k *Keyboard) readInput(in io.Reader, isTerminal bool) {
	for {
		chunk := make([]byte, 4<<10)
		n, err := in.Read(chunk)
		chunk, hasLeaveKey := chunk[:n], false
		if isTerminal {
			chunk, _, hasLeaveKey = bytes.Cut(chunk, []byte{LeaveKey})
		}
		if len(chunk) > 0 {
			k.keepInput(chunk, isTerminal)
		}
		if hasLeaveKey {
			close(k.detached)
			return
		}
		if err != nil {
			close(k.typed)
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

// DropInput drops the input that was typed and not sent. The context of an earlier reader, if there is
// one, must have ended.
func (k *Keyboard) DropInput() {
	k.lock <- struct{}{}
	defer func() { <-k.lock }()
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

// Detached returns a channel that is closed once the user has typed LeaveKey.
func (k *Keyboard) Detached() <-chan struct{} { return k.detached }

// NewReader returns a reader of the input that ends with ctx. Only one reader may be in use at a time.
func (k *Keyboard) NewReader(ctx context.Context) io.Reader {
	return &keyboardReader{ctx: ctx, keyboard: k}
}

type keyboardReader struct {
	ctx      context.Context
	keyboard *Keyboard
}

// Read implements io.Reader. If ctx ends first, it leaves the input to the next reader.
func (r *keyboardReader) Read(p []byte) (int, error) {
	k := r.keyboard
	select {
	case <-r.ctx.Done():
		return 0, io.EOF
	case k.lock <- struct{}{}:
	}
	defer func() { <-k.lock }()
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
