// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"io"

	"cloudnative.tw/drover/internal/machine/failure"
)

// limits bound one answer.
type limits struct {
	// read is how many bytes it may have.
	read int
	// text is how many bytes of each text in it are kept, escaped as it is sent.
	text int
	// kept is how many bytes are kept in all.
	kept int
}

// maxDepth is how deep an answer may be nested. Those that are asked for have a depth of 5.
const maxDepth = 16

var (
	// answerLimits are the limits of an answer without output. One about interfaces has 400 bytes
	// for each.
	answerLimits = limits{read: 512 << 10, text: 512 << 10, kept: 512 << 10}
	// outputLimits are the limits of an answer with two outputs in base64, of which the agent
	// sends more than is kept.
	outputLimits = limits{read: 64 << 20, text: failure.MaxOutput / 3 * 4, kept: 2*failure.MaxOutput/3*4 + 4<<10}
)

// readObject reads one JSON object up to its end, however it is divided into lines. It shortens
// texts that are too long, and reports whether it did. It leaves a sentinel in the middle, where
// another answer begins, to be read again.
func readObject(in io.ByteScanner, most limits) (object []byte, isCut bool, err error) {
	s := shortener{most: most}
	for range most.read {
		b, err := in.ReadByte()
		if err != nil {
			return nil, s.isCut, err
		}
		if b == sentinel {
			return nil, s.isCut, errors.Join(errInterrupted, in.UnreadByte())
		}
		isComplete, err := s.addByte(b)
		if err != nil {
			return nil, s.isCut, err
		}
		if isComplete {
			return s.kept, s.isCut, nil
		}
	}
	return nil, s.isCut, errTooLong
}

var (
	errTooLong     = fmt.Errorf("%w: it is too long", failure.ErrBadAnswer)
	errTooDeep     = fmt.Errorf("%w: it is nested too deep", failure.ErrBadAnswer)
	errNoObject    = fmt.Errorf("%w: it is not a JSON object", failure.ErrBadAnswer)
	errInterrupted = fmt.Errorf("%w: it ends in the middle", failure.ErrBadAnswer)
)

// shortener keeps a JSON object that comes byte by byte. It knows as much of JSON as it takes
// to find the end of texts and of the object. The rest is checked when the object is decoded.
type shortener struct {
	most  limits
	kept  []byte
	isCut bool

	depth     int
	inText    bool
	isEscaped bool // the next byte of a text
	textBytes int
}

// addByte adds a byte, and reports whether the object is complete.
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
		isComplete = s.enterByte(b)
	}
	switch {
	case len(s.kept) > s.most.kept:
		return false, errTooLong
	case s.depth > maxDepth:
		return false, errTooDeep
	}
	return isComplete, nil
}

// enterByte follows a byte outside of texts.
func (s *shortener) enterByte(b byte) (isComplete bool) {
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
	if s.textBytes > s.most.text {
		s.isCut = true
		return
	}
	s.kept = append(s.kept, b)
}

func isSpace(b byte) bool { return b == ' ' || b == '\n' || b == '\r' || b == '\t' }
