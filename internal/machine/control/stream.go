// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Channels of a stream. The first byte of each WebSocket message names one.
const (
	channelInput  = iota // to the guest; an empty message is its end
	channelOutput        // what the guest prints
	channelErrors        // what a command prints on its standard error
	channelStart         // the first message to the machine: a commandMessage as JSON
	channelEnd           // the last message from the machine: an ending as JSON
	channelResize        // to the guest: the TerminalSize of a command as JSON
)

const (
	// messageSize limits the content of a message that is sent. maxOutput is more than a machine sends in a
	// message. maxInput is more than a client sends, whose first message has a command.
	messageSize, maxOutput, maxInput = 16 << 10, 32 << 10, 256 << 10
	// lingerFor limits how long the other end may take to read the ending.
	lingerFor = 5 * time.Second
	// pingEvery is the interval between two signs of life, and silentWithin limits the time without any.
	// sendWithin limits how long a message may wait for the other end to read.
	pingEvery, silentWithin, sendWithin = 20 * time.Second, time.Minute, 30 * time.Second
)

// commandMessage is a command that is to be run.
type commandMessage struct {
	Args []string `json:"args"`
	TTY  bool     `json:"tty,omitempty"`
}

// ending is how a stream has ended.
type ending struct {
	ExitCode int    `json:"exitCode,omitempty"`
	Failure  string `json:"failure,omitempty"`
}

// stream is one end of a stream.
type stream struct {
	ws *websocket.Conn

	ctx context.Context // ends with the stream
	end context.CancelCauseFunc

	writing sync.Mutex
}

// newStream returns one end of a stream over a WebSocket. It ends with ctx, and refuses larger messages
// than maxMessage.
func newStream(ctx context.Context, ws *websocket.Conn, maxMessage int64) *stream {
	s := &stream{ws: ws}
	s.ctx, s.end = context.WithCancelCause(ctx)
	context.AfterFunc(s.ctx, func() { _ = ws.Close() }) //nolint:contextcheck // it is the caller's
	ws.SetReadLimit(maxMessage)
	answer := ws.PingHandler()
	ws.SetPingHandler(func(data string) error { return errors.Join(s.allowSilence(), answer(data)) })
	ws.SetPongHandler(func(string) error { return s.allowSilence() })
	go s.keepAlive()
	return s
}

// keepAlive sends pings, and also pongs: an end that does not read does not answer the pings of the other.
func (s *stream) keepAlive() {
	ticker := time.NewTicker(pingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C:
		}
		for _, kind := range []int{websocket.PingMessage, websocket.PongMessage} {
			if err := s.ws.WriteControl(kind, nil, deadlineAfter(sendWithin)); err != nil {
				s.end(explainError(err))
				return
			}
		}
	}
}

// allowSilence restarts the time within which the other end has to send something.
func (s *stream) allowSilence() error { return s.ws.SetReadDeadline(deadlineAfter(silentWithin)) }

// deadlineAfter returns a deadline for the connection, which the system's clock measures.
func deadlineAfter(d time.Duration) time.Time { return time.Now().Add(d) } //nolint:forbidigo // see above

// sendMessage sends a message.
func (s *stream) sendMessage(channel byte, content []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.ws.SetWriteDeadline(deadlineAfter(sendWithin))
	if err == nil {
		err = s.ws.WriteMessage(websocket.BinaryMessage, slices.Concat([]byte{channel}, content))
	}
	return s.endWith(err)
}

// sendJSON sends a message with JSON.
func (s *stream) sendJSON(channel byte, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return s.sendMessage(channel, text)
}

// receiveMessage waits for a message. An error ends the stream.
func (s *stream) receiveMessage() (channel byte, content []byte, err error) {
	var message []byte
	if err = s.allowSilence(); err == nil {
		_, message, err = s.ws.ReadMessage()
	}
	if err == nil && len(message) == 0 {
		err = ErrProtocol
	}
	if err == nil {
		err = context.Cause(s.ctx) // the other end may answer to the end of this one
	}
	if err != nil {
		return 0, nil, s.endWith(err)
	}
	return message[0], message[1:], nil
}

// endWith ends the stream for an error, and returns why it has ended: for this error or an earlier one. It
// returns nil for nil.
func (s *stream) endWith(err error) error {
	if err == nil {
		return nil
	}
	s.end(explainError(err))
	return context.Cause(s.ctx)
}

// errInput means that the input of a command could not be read.
var errInput = errors.New("reading the input of the command")

// sendFrom sends all that it reads, and then the end of the input. A failure to read ends the stream.
func (s *stream) sendFrom(reader io.Reader) {
	_, err := io.CopyBuffer(outgoing{s, channelInput}, struct{ io.Reader }{reader}, make([]byte, messageSize))
	if err != nil {
		s.end(fmt.Errorf("%w: %w", errInput, err))
		return
	}
	_ = s.sendMessage(channelInput, nil)
}

// outgoing writes to a channel of the other end.
type outgoing struct {
	*stream

	channel byte
}

// Write implements io.Writer.
func (o outgoing) Write(p []byte) (written int, err error) {
	for part := range slices.Chunk(p, messageSize) {
		if err := o.sendMessage(o.channel, part); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}

// closeWith sends how the stream has ended, and waits for the other end to leave, because a connection that is
// closed early loses what was sent. Its caller has another goroutine receive meanwhile.
func (s *stream) closeWith(code int, err error) {
	if s.sendJSON(channelEnd, ending{code, failureName(err)}) == nil {
		select {
		case <-s.ctx.Done():
		case <-time.After(lingerFor):
		}
	}
	s.end(io.EOF)
}

// readEnding returns the exit code or the failure of an ending.
func readEnding(content []byte) (exitCode int, err error) {
	var e ending
	if json.Unmarshal(content, &e) != nil {
		return 0, ErrProtocol
	}
	err = failureOf(e.Failure)
	if errors.Is(err, ErrProtocol) {
		return 0, err
	}
	return e.ExitCode, err
}
