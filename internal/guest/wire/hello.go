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

// A hello is the run's nonce and a random ID for the session. The guest searches all data for the
// nonce. A new session begins there, and the guest drops unfinished data of the session before. It
// answers with answerMark and the ID, which the host searches for in the same way.

// idLength is the length of a session's ID, in bytes.
const idLength = 16

// answerMark precedes the ID in the guest's answer.
var answerMark = []byte("drover-guest/1\n")

// ErrNoAnswer means that the guest has sent much data, but not an answer to the hello.
var ErrNoAnswer = errors.New("the guest sends something other than an answer to the greeting")

// maxStale is how many bytes of an earlier session may precede the answer: the content of the buffers
// of QEMU and of the guest, and one write.
const maxStale = 1 << 20

// Greet begins a session on the host's side, and returns a reader of the guest's data.
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
	// Data is called with data of the current session.
	Data func(p []byte)
	// Begin is called with the ID of a new session, and ends the session before. The last data of the session
	// before may be a beginning of the nonce, if the hello arrived in pieces.
	Begin func(id []byte)

	finder finder
	// id is the received part of an ID, nil outside of a hello.
	id []byte
	// hasBegun is set once there is a session.
	hasBegun bool
}

// NewSessions returns Sessions that begin with a nonce.
func NewSessions(nonce []byte) *Sessions { return &Sessions{finder: finder{mark: nonce}} }

// Reset drops the current session after its host has closed the connection.
func (s *Sessions) Reset() { s.hasBegun, s.id, s.finder.held = false, nil, 0 }

// Feed handles the next data of the port.
func (s *Sessions) Feed(p []byte) {
	for len(p) > 0 {
		if s.id != nil {
			n := min(len(p), idLength-len(s.id))
			if s.id, p = append(s.id, p[:n]...), p[n:]; len(s.id) == idLength {
				s.hasBegun = true
				s.Begin(s.id)
				s.id = nil
			}
			continue
		}
		before, rest, found := s.finder.find(p)
		if s.hasBegun && len(before) > 0 {
			s.Data(before)
		}
		if p = rest; found {
			s.id = make([]byte, 0, idLength)
		}
	}
}

// finder finds a mark in a stream that arrives in pieces.
type finder struct {
	mark []byte
	// held is how many bytes at the end of the stream so far are a beginning of the mark.
	held int
}

// find returns the part of p before the mark, and the part after it. It returns data at once even if the data may be
// the beginning of the mark, since it may also be a message whose answer the other end awaits. If it is the mark
// indeed, the session that received the data ends anyway.
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
