// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"sync"
)

const (
	// screenSize bounds the unread output in bytes. A console always reads from the engine, since the
	// engine blocks a container whose attached client does not read.
	screenSize = 256 << 10
	// earlierSize bounds the output from before the console was opened, in bytes.
	earlierSize = 4 << 10
)

// screen has the unread output of a console.
type screen struct {
	mu      sync.Mutex
	changed sync.Cond
	text    []byte
	end     error // the error that Read returns after the text
}

func newScreen() *screen {
	s := &screen{}
	s.changed.L = &s.mu
	return s
}

// Write adds output. It never blocks, but drops the oldest output if the reader is too slow.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = keepEnd(append(s.text, p...), screenSize)
	s.changed.Broadcast()
	return len(p), nil
}

// Read implements io.Reader.
func (s *screen) Read(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.text) == 0 && s.end == nil && len(p) > 0 {
		s.changed.Wait()
	}
	if len(s.text) == 0 && len(p) > 0 {
		return 0, s.end
	}
	n := copy(p, s.text)
	s.text = s.text[n:]
	return n, nil
}

// endWith ends the output with an error, unless it has ended already.
func (s *screen) endWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		s.end = err
	}
	s.changed.Broadcast()
}

// putBefore adds earlier output at the beginning. It removes the overlap: output that is both in the
// engine's log and in the attached stream.
func (s *screen) putBefore(earlier []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(slices.Clip(earlier), s.text[overlapLength(earlier, s.text):]...)
	s.changed.Broadcast()
}

// overlapLength returns the length of the longest suffix of a that is a prefix of b.
func overlapLength(a, b []byte) int {
	for n := min(len(a), len(b)); n > 0; n-- {
		if bytes.HasSuffix(a, b[:n]) {
			return n
		}
	}
	return 0
}

// keepEnd returns the last size bytes of a text.
func keepEnd(text []byte, size int) []byte { return text[max(0, len(text)-size):] }

// readEnd reads to io.EOF and returns the last size bytes.
func readEnd(r io.Reader, size int) ([]byte, error) {
	var text []byte
	buffer := make([]byte, size)
	for {
		n, err := r.Read(buffer)
		text = keepEnd(append(text, buffer[:n]...), size)
		if errors.Is(err, io.EOF) {
			return text, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
