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

// Channels of a stream, which is a WebSocket: the first byte of a message names one.
const (
	channelInput  = iota // to the guest; an empty message is its end
	channelOutput        // what the guest prints
	channelErrors        // what a command prints on its standard error
	channelStart         // to the machine first: what to run, as a list of JSON
	channelEnd           // from the machine at last: an ending as JSON
)

const (
	// messageSize is what an end sends at a time. maxOutput is more than a machine sends in a message,
	// and maxInput more than its client does, whose first message has a command.
	messageSize, maxOutput, maxInput = 16 << 10, 32 << 10, 256 << 10
	// lingerFor is how long the other end may take to read the ending.
	lingerFor = 5 * time.Second
	// pingEvery is the interval between two signs of life, silentWithin how long none may come, and
	// sendWithin how long a message may wait for the other end to read.
	pingEvery, silentWithin, sendWithin = 20 * time.Second, time.Minute, 30 * time.Second
)

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

// newStream takes a WebSocket, which ends with ctx, and whose messages may have a size.
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

// keepAlive sends signs of life. The other end's pings are not read while this one does not read.
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
			if err := s.ws.WriteControl(kind, nil, after(sendWithin)); err != nil {
				s.end(explain(err))
				return
			}
		}
	}
}

func (s *stream) allowSilence() error { return s.ws.SetReadDeadline(after(silentWithin)) }

// after returns a deadline for the connection, which the system's clock measures.
func after(d time.Duration) time.Time { return time.Now().Add(d) } //nolint:forbidigo // see above

// send sends a message.
func (s *stream) send(channel byte, content []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	err := s.ws.SetWriteDeadline(after(sendWithin))
	if err == nil {
		err = s.ws.WriteMessage(websocket.BinaryMessage, slices.Concat([]byte{channel}, content))
	}
	return s.settle(err)
}

func (s *stream) sendJSON(channel byte, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return s.send(channel, text)
}

// receive waits for a message. An error ends the stream.
func (s *stream) receive() (channel byte, content []byte, err error) {
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
		return 0, nil, s.settle(err)
	}
	return message[0], message[1:], nil
}

// settle returns why the stream has ended, if it has or does so by this error.
func (s *stream) settle(err error) error {
	if err == nil {
		return nil
	}
	s.end(explain(err))
	return context.Cause(s.ctx)
}

// errInput : the input of a command could not be read.
var errInput = errors.New("reading the input of the command")

// sendFrom sends all that it reads, and its end. A failure to read ends the stream.
func (s *stream) sendFrom(from io.Reader) {
	_, err := io.CopyBuffer(outgoing{s, channelInput}, struct{ io.Reader }{from}, make([]byte, messageSize))
	if err != nil {
		s.end(fmt.Errorf("%w: %w", errInput, err))
		return
	}
	_ = s.send(channelInput, nil)
}

// outgoing is a channel to the other end.
type outgoing struct {
	*stream

	channel byte
}

// Write implements io.Writer.
func (o outgoing) Write(p []byte) (written int, err error) {
	for part := range slices.Chunk(p, messageSize) {
		if err := o.send(o.channel, part); err != nil {
			return written, err
		}
		written += len(part)
	}
	return written, nil
}

// close sends how the stream has ended, and waits for the other end to leave: a connection that is
// closed before all of it was read loses what was sent. A caller receives meanwhile.
func (s *stream) close(code int, err error) {
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
	if e.Failure == "" {
		return e.ExitCode, nil
	}
	for _, f := range failures {
		if f.name == e.Failure {
			return e.ExitCode, f.err
		}
	}
	return 0, fmt.Errorf("%w: an unknown failure", ErrProtocol)
}
