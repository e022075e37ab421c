// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/gorilla/websocket"
)

// ViolationError says how the other end has violated the protocol, without text of the other end.
type ViolationError string

// Error implements error.
func (e ViolationError) Error() string { return string(e) }

func violation(format string, args ...any) error {
	return ViolationError(fmt.Sprintf(format, args...))
}

// ErrSilent means that the other end has sent nothing for too long.
var ErrSilent = errors.New("the other end is silent")

// receiveError names why nothing is received any more.
func (s *Stream) receiveError(err error) error {
	if errors.Is(err, websocket.ErrReadLimit) {
		return violation("a message was larger than %d bytes", s.MaxMessage)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// nextMessage waits for a message that has a channel.
func (s *Stream) nextMessage() (channel byte, content io.Reader, err error) {
	for {
		if err := s.allowSilence(); err != nil {
			return 0, nil, err
		}
		kind, message, err := s.ws.NextReader()
		if err == nil && kind != websocket.BinaryMessage {
			err = violation("a message was not binary")
		}
		if err != nil {
			return 0, nil, err
		}
		var number [1]byte
		_, err = io.ReadFull(message, number[:])
		switch {
		case err == nil:
			return number[0], message, nil
		case !errors.Is(err, io.EOF):
			return 0, nil, err
		case s.Protocol.Close == 0:
			return 0, nil, violation("a message was empty")
		}
	}
}

// Receive waits for a message, and returns all of it. An error ends the stream.
func (s *Stream) Receive() (channel byte, content []byte, err error) {
	channel, message, err := s.nextMessage()
	if err == nil {
		content, err = io.ReadAll(message)
	}
	if err != nil {
		return 0, nil, s.endWith(s.receiveError(err))
	}
	return channel, content, context.Cause(s.ctx) // the other end may answer to the end of this one
}

// ServeInput receives messages until the other end leaves, which ends the stream. It writes the input to a writer, and
// closes that at the end of the input. sizes, which has room for one, gets the last size of the terminal; nil
// refuses sizes.
func (s *Stream) ServeInput(input io.WriteCloser, sizes chan Size) {
	defer close(s.left)
	err := s.receiveError(s.receiveInput(input, sizes))
	end := s.endWith(err) // before input is closed, which may end the stream too
	if pipe, ok := input.(*io.PipeWriter); ok {
		_ = pipe.CloseWithError(end) // no effect if the end of the input was received
	}
	if _, ok := errors.AsType[ViolationError](err); ok {
		_, _ = io.Copy(io.Discard, s.ws.NetConn()) // until Finish has sent why
	}
}

func (s *Stream) receiveInput(input io.WriteCloser, sizes chan Size) error {
	for {
		channel, content, err := s.nextMessage()
		switch {
		case err != nil:
		case channel == Input:
			err = s.passInput(input, content)
		case channel == s.Protocol.Resize && sizes != nil:
			err = replaceSize(sizes, content)
		case channel == s.Protocol.Close && channel != 0:
			err = closeInput(input, content)
		default:
			err = s.violationOf(channel)
		}
		if err != nil {
			return err
		}
	}
}

func (s *Stream) violationOf(channel byte) error {
	if s.Protocol.Close == 0 {
		return violation("a message was for channel %d: it must be %d or %d", channel, Input, s.Protocol.Resize)
	}
	return violation("a message was for channel %d: it must be %d, %d or %d", channel, Input, s.Protocol.Resize, s.Protocol.Close)
}

// buffers are for input, so that idle streams hold none.
var buffers = sync.Pool{New: func() any { return new([ChunkSize]byte) }}

// passInput writes the content of a message to the input.
func (s *Stream) passInput(input io.WriteCloser, content io.Reader) error {
	buffer, _ := buffers.Get().(*[ChunkSize]byte)
	defer buffers.Put(buffer)
	for isEmpty := true; ; {
		if err := s.allowSilence(); err != nil {
			return err
		}
		n, err := content.Read(buffer[:])
		if n > 0 { // a pipe waits for a reader even to pass on nothing
			isEmpty = false
			s.count(n, 0)
			if _, err := input.Write(buffer[:n]); err != nil && !errors.Is(err, io.ErrClosedPipe) { // nothing reads the input any more
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF) && isEmpty && s.Protocol.Close == 0:
			_ = input.Close()
			return nil
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// replaceSize replaces the size that waits in a channel, since only the last one counts.
func replaceSize(sizes chan Size, content io.Reader) error {
	var size Size
	if err := json.NewDecoder(content).Decode(&size); err != nil {
		if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, websocket.ErrReadLimit) {
			return err
		}
		return violation("a size of the terminal was not understood: it must be {\"Width\": 80, \"Height\": 24}, each from 0 to 65535")
	}
	select {
	case <-sizes:
	default:
	}
	sizes <- size // there is room, since only this function sends
	return nil
}

// closeInput closes the input if its channel is the one that has ended. The end of another one means nothing.
func closeInput(input io.WriteCloser, content io.Reader) error {
	var number [1]byte
	if _, err := io.ReadFull(content, number[:]); err != nil {
		return violation("a channel was closed without its number")
	}
	if number[0] == Input {
		_ = input.Close()
	}
	return nil
}
