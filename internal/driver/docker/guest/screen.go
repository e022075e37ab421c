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

// How much output a screen keeps.
const (
	// screenSize is how much a reader may be behind. The engine holds up a container whose
	// output an attached client does not take, so a console always does.
	screenSize = 256 << 10
	// earlierSize is how much of the earlier output a reader gets.
	earlierSize = 4 << 10
)

// screen has the output of a console that was not read yet.
type screen struct {
	mu      sync.Mutex
	changed sync.Cond
	text    []byte
	end     error // after the text
}

func newScreen() *screen {
	s := &screen{}
	s.changed.L = &s.mu
	return s
}

// Write adds output. It never waits: what a slow reader has not read is dropped.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = keepEnd(append(s.text, p...), screenSize)
	s.changed.Broadcast()
	return len(p), nil
}

// Read waits for output, or for the end.
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

// endWith ends the output. Only the first end counts.
func (s *screen) endWith(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		s.end = err
	}
	s.changed.Broadcast()
}

// putBefore adds output from before the screen was attached. What was printed while the
// two overlapped is in both.
func (s *screen) putBefore(earlier []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(slices.Clip(earlier), s.text[overlapLength(earlier, s.text):]...)
	s.changed.Broadcast()
}

// overlapLength returns the length of the longest text that ends a and begins b.
func overlapLength(a, b []byte) int {
	for n := min(len(a), len(b)); n > 0; n-- {
		if bytes.HasSuffix(a, b[:n]) {
			return n
		}
	}
	return 0
}

// keepEnd drops the beginning of a text that is too long.
func keepEnd(text []byte, size int) []byte { return text[max(0, len(text)-size):] }

// readEnd reads everything and returns the end of it.
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
