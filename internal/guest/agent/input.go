// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"bytes"
	"encoding/binary"
	"io"
	"sync"

	"cloudnative.tw/drover/internal/guest/wire"
)

// input is the input that a program has not taken yet, at most wire.InputWindow bytes.
type input struct {
	mu     sync.Mutex
	change *sync.Cond
	waits  []byte
	// sent is how many bytes have been added and not been reported as taken.
	sent   int
	closed bool
}

func newInput() *input {
	i := &input{}
	i.change = sync.NewCond(&i.mu)
	return i
}

// add adds input. It reports whether the host has kept to the window.
func (i *input) add(p []byte) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.sent+len(p) > wire.InputWindow {
		return false
	}
	i.sent += len(p)
	i.waits = append(i.waits, p...)
	i.change.Signal()
	return true
}

// close ends the input.
func (i *input) close() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.closed = true
	i.change.Signal()
}

// next returns what to write next, nil at the end.
func (i *input) next() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	for len(i.waits) == 0 {
		if i.closed {
			return nil
		}
		i.change.Wait()
	}
	n := min(len(i.waits), wire.MaxData)
	p := bytes.Clone(i.waits[:n])
	if i.waits = i.waits[n:]; len(i.waits) == 0 {
		i.waits = nil
	}
	return p
}

// write passes the input on to a program, and tells the host what it has taken.
func (i *input) write(s *ends, out io.Writer) {
	for p := i.next(); p != nil; p = i.next() {
		if s.input != nil {
			_, _ = s.input.Write(p)
		}
		i.mu.Lock()
		i.sent -= len(p)
		i.mu.Unlock()
		if wire.WriteFrame(out, wire.FrameTaken, binary.BigEndian.AppendUint32(nil, uint32(len(p)))) != nil { //nolint:gosec // at most wire.MaxData
			break
		}
	}
	s.endInput()
}
