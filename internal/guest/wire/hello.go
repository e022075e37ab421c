// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"slices"
)

// A hello is the run's nonce and the number of a session, which the host chooses at random. The guest
// looks for the nonce in all data: wherever it is, a new session begins, and the data before it
// is dropped. It answers with the number, for which the host looks likewise.

// idLength is the length of a session's number, in bytes.
const idLength = 16

// answerMark comes before the number in the guest's answer.
var answerMark = []byte("drover-guest/1\n")

// ErrNoAnswer means that the guest has sent much data, but not an answer to the hello.
var ErrNoAnswer = errors.New("the guest sends something other than an answer to the greeting")

// maxStale is how much of an earlier session may come before the answer: what QEMU and the guest's
// queues hold, and one write.
const maxStale = 1 << 20

// Greet begins a session on the host's side, and returns what follows of the guest's stream.
func Greet(conn io.ReadWriter, nonce []byte) (io.Reader, error) {
	id := make([]byte, idLength)
	if _, err := rand.Read(id); err != nil {
		return nil, err
	}
	if _, err := conn.Write(append(bytes.Clone(nonce), id...)); err != nil {
		return nil, err
	}
	mark := append(bytes.Clone(answerMark), id...)
	finder, buffer := finder{mark: mark}, make([]byte, 4096)
	for seen := 0; seen < maxStale; {
		n, err := conn.Read(buffer)
		if _, rest, found := finder.find(buffer[:n]); found {
			return io.MultiReader(bytes.NewReader(bytes.Clone(rest)), conn), nil
		}
		if seen += n; err != nil {
			return nil, err
		}
	}
	return nil, ErrNoAnswer
}

// Answer answers a hello.
func Answer(w io.Writer, id []byte) error {
	_, err := w.Write(append(bytes.Clone(answerMark), id...))
	return err
}

// Sessions divides the data of the guest's port into sessions.
type Sessions struct {
	// Data gets what belongs to the current session.
	Data func(p []byte)
	// Begin gets the number of a new one. What Data got before belongs to no session now. It may end with the
	// beginning of the nonce, if a hello came in pieces.
	Begin func(id []byte)

	finder finder
	// id is the part of a number that has come, nil while none is awaited.
	id []byte
	// began is set once there is a session.
	began bool
}

// NewSessions looks for sessions by their nonce.
func NewSessions(nonce []byte) *Sessions { return &Sessions{finder: finder{mark: nonce}} }

// Reset drops the current session: its host is gone.
func (s *Sessions) Reset() { s.began, s.id, s.finder.held = false, nil, 0 }

// Feed takes what has come next.
func (s *Sessions) Feed(p []byte) {
	for len(p) > 0 {
		if s.id != nil {
			n := min(len(p), idLength-len(s.id))
			if s.id, p = append(s.id, p[:n]...), p[n:]; len(s.id) == idLength {
				s.began = true
				s.Begin(s.id)
				s.id = nil
			}
			continue
		}
		before, rest, found := s.finder.find(p)
		if s.began && len(before) > 0 {
			s.Data(before)
		}
		if p = rest; found {
			s.id = make([]byte, 0, idLength)
		}
	}
}

// finder finds a mark in a stream that comes in pieces.
type finder struct {
	mark []byte
	// held is how many bytes of the mark the stream ends with so far.
	held int
}

// find returns the part of p before the mark, and the part after it. It holds nothing back: data that looks like
// the beginning of the mark may be a message for which the other end awaits an answer. If it is the mark, it goes
// to a session that is over.
func (f *finder) find(p []byte) (before, rest []byte, found bool) {
	stream, held := p, f.held
	if held > 0 {
		stream = slices.Concat(f.mark[:held], p)
	}
	i := bytes.Index(stream, f.mark)
	if i < 0 {
		f.held = suffix(stream, f.mark)
		return p, nil, false
	}
	f.held = 0
	return p[:max(0, i-held)], stream[i+len(f.mark):], true
}

// suffix returns how many bytes at the end of p could be the beginning of the mark.
func suffix(p, mark []byte) int {
	for n := min(len(p), len(mark)-1); n > 0; n-- {
		if bytes.HasPrefix(mark, p[len(p)-n:]) {
			return n
		}
	}
	return 0
}
