// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io"

	"cloudnative.tw/drover/internal/machine/failure"
)

// limits bound one answer, in bytes.
type limits struct {
	// read is how long the answer may be.
	read int
	// text is how much of each JSON string is kept. Escape sequences count as they are sent.
	text int
	// kept is how much of the answer is kept in all.
	kept int
}

// maxDepth is how deep an answer may be nested. The expected answers have a depth of 5.
const maxDepth = 16

var (
	// answerLimits are for answers without output. guest-network-get-interfaces sends 400 bytes
	// for each interface.
	answerLimits = limits{read: 512 << 10, text: 512 << 10, kept: 512 << 10}
	// outputLimits are for answers with stdout and stderr in base64. The agent sends more output
	// than is kept.
	outputLimits = limits{read: 64 << 20, text: failure.MaxOutput / 3 * 4, kept: 2*failure.MaxOutput/3*4 + 4<<10}
)

// readObject reads one JSON object up to its end, which may span lines. It shortens strings that
// are too long, and then sets isTruncated. If a sentinel interrupts the object, another answer begins
// there: readObject fails and unreads the sentinel.
func readObject(in io.ByteScanner, bounds limits) (object []byte, isTruncated bool, err error) {
	s := shortener{limits: bounds}
	for range bounds.read {
		b, err := in.ReadByte()
		if err != nil {
			return nil, s.isTruncated, err
		}
		if b == sentinel {
			return nil, s.isTruncated, errors.Join(errInterrupted, in.UnreadByte())
		}
		isComplete, err := s.addByte(b)
		if err != nil {
			return nil, s.isTruncated, err
		}
		if isComplete {
			return s.kept, s.isTruncated, nil
		}
	}
	return nil, s.isTruncated, errTooLong
}

var (
	errTooLong     = fmt.Errorf("%w: the answer is too long", failure.ErrBadAnswer)
	errTooDeep     = fmt.Errorf("%w: the JSON is nested too deep", failure.ErrBadAnswer)
	errNoObject    = fmt.Errorf("%w: the answer is not a JSON object", failure.ErrBadAnswer)
	errInterrupted = fmt.Errorf("%w: the JSON object is incomplete", failure.ErrBadAnswer)
)

// shortener collects a JSON object byte by byte, and shortens long strings. It parses only as much
// JSON as finds the ends of strings and of the object. The decoder checks the rest.
type shortener struct {
	limits      limits
	kept        []byte
	isTruncated bool

	depth     int
	inText    bool
	isEscaped bool // the last byte was a backslash
	textBytes int
}

// addByte reports whether the object is complete with b.
func (s *shortener) addByte(b byte) (isComplete bool, err error) {
	switch {
	case s.inText:
		s.addToText(b)
	case s.depth == 0 && isSpace(b):
		return false, nil
	case s.depth == 0 && b != '{':
		return false, errNoObject
	default:
		s.kept = append(s.kept, b)
		isComplete = s.updateDepth(b)
	}
	switch {
	case len(s.kept) > s.limits.kept:
		return false, errTooLong
	case s.depth > maxDepth:
		return false, errTooDeep
	}
	return isComplete, nil
}

// updateDepth handles a byte outside of strings.
func (s *shortener) updateDepth(b byte) (isComplete bool) {
	switch b {
	case '"':
		s.inText, s.textBytes = true, 0
	case '{', '[':
		s.depth++
	case '}', ']':
		s.depth--
	}
	return s.depth == 0
}

func (s *shortener) addToText(b byte) {
	switch {
	case s.isEscaped:
		s.isEscaped = false
	case b == '\\':
		s.isEscaped = true
	case b == '"':
		s.inText = false
		s.kept = append(s.kept, b)
		return
	}
	s.textBytes++
	if s.textBytes > s.limits.text {
		s.isTruncated = true
		return
	}
	s.kept = append(s.kept, b)
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }
