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

// ViolationError says how the other end has violated the protocol. It contains no text from the other end.
type ViolationError string

// Error implements error.
func (e ViolationError) Error() string { return string(e) }

func violationError(format string, args ...any) error {
	return ViolationError(fmt.Sprintf(format, args...))
}

// ErrSilent means that the other end has sent nothing for too long.
var ErrSilent = errors.New("the other end is silent")

// receiveError translates an error of the WebSocket to a ViolationError or ErrSilent, where one of them fits.
func (s *Stream) receiveError(err error) error {
	if errors.Is(err, websocket.ErrReadLimit) {
		return violationError("a message was larger than %d bytes", s.MaxMessage)
	}
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return err
}

// nextMessage waits for the next message, and returns its channel and a reader of its content. Protocols with a Close
// channel allow empty messages, which nextMessage skips.
func (s *Stream) nextMessage() (channel byte, content io.Reader, err error) {
	for {
		if err := s.allowSilence(); err != nil {
			return 0, nil, err
		}
		kind, message, err := s.ws.NextReader()
		if err == nil && kind != websocket.BinaryMessage {
			err = violationError("a message was not binary")
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
			return 0, nil, violationError("a message was empty")
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
	return channel, content, context.Cause(s.ctx) // a message may still arrive after this end has ended the stream
}

// ServeInput receives messages until the connection ends, and then ends the stream. It writes the client's input to
// input, and closes input when the client's input ends. It sends the latest size of the terminal to sizes, which must
// have a capacity of 1. If sizes is nil, a size violates the protocol.
func (s *Stream) ServeInput(input io.WriteCloser, sizes chan Size) {
	defer close(s.received)
	err := s.receiveError(s.receiveInput(input, sizes))
	end := s.endWith(err) // first: closing input may end the stream with another error
	if pipe, ok := input.(*io.PipeWriter); ok {
		_ = pipe.CloseWithError(end) // has no effect if the input has already ended
	}
	if _, ok := errors.AsType[ViolationError](err); ok {
		_, _ = io.Copy(io.Discard, s.ws.NetConn()) // keep reading until Finish has told the client of the violation
	}
}

func (s *Stream) receiveInput(input io.WriteCloser, sizes chan Size) error {
	for {
		channel, content, err := s.nextMessage()
		switch {
		case err != nil:
		case channel == Input:
			err = s.copyInput(input, content)
		case channel == s.Protocol.Resize && sizes != nil:
			err = replaceSize(sizes, content)
		case channel == s.Protocol.Close && channel != 0:
			err = closeInput(input, content)
		default:
			err = s.channelError(channel)
		}
		if err != nil {
			return err
		}
	}
}

func (s *Stream) channelError(channel byte) error {
	if s.Protocol.Close == 0 {
		return violationError("a message was for channel %d: it must be %d or %d", channel, Input, s.Protocol.Resize)
	}
	return violationError("a message was for channel %d: it must be %d, %d or %d", channel, Input, s.Protocol.Resize, s.Protocol.Close)
}

// buffers are shared by the input of all streams, so that idle streams use no memory for it.
var buffers = sync.Pool{New: func() any { return new([ChunkSize]byte) }}

// copyInput writes the content of a message to input. In a protocol without a Close channel, an empty message ends the
// input.
func (s *Stream) copyInput(input io.WriteCloser, content io.Reader) error {
	buffer, _ := buffers.Get().(*[ChunkSize]byte)
	defer buffers.Put(buffer)
	for isEmpty := true; ; {
		if err := s.allowSilence(); err != nil {
			return err
		}
		n, err := content.Read(buffer[:])
		if n > 0 { // a write of 0 bytes to a pipe would wait for a reader
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

// replaceSize replaces the size that waits in sizes, since only the latest size counts.
func replaceSize(sizes chan Size, content io.Reader) error {
	var size Size
	if err := json.NewDecoder(content).Decode(&size); err != nil {
		if _, ok := errors.AsType[net.Error](err); ok || errors.Is(err, websocket.ErrReadLimit) {
			return err
		}
		return violationError("a size of the terminal was not understood: it must be {\"Width\": 80, \"Height\": 24}, each from 0 to 65535")
	}
	select {
	case <-sizes:
	default:
	}
	sizes <- size // does not block, since only this function sends
	return nil
}

// closeInput closes input if the message says that channel Input has ended. The end of another channel means nothing.
func closeInput(input io.WriteCloser, content io.Reader) error {
	var number [1]byte
	if _, err := io.ReadFull(content, number[:]); err != nil {
		return violationError("a channel was closed without its number")
	}
	if number[0] == Input {
		_ = input.Close()
	}
	return nil
}
