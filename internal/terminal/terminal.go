// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal carries a console, or a command's input and output, over a WebSocket. The first byte
// of each binary message names the message's channel.
//
// Start with Stream. A Protocol has the channels of the two kinds of streams: clients of Kubernetes speak one,
// and Drover and a drover-machine the other.
package terminal

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
	"k8s.io/utils/clock"
)

// Channels that are the same in all protocols.
const (
	Input  = 0 // to the command
	Output = 1 // what the command or the guest prints
	Errors = 2 // what a command prints on its standard error
)

// Protocol has the numbers of the other channels.
type Protocol struct {
	Start  byte // the first message from a client, 0 if there is none
	End    byte // the last message to a client
	Resize byte // to the command: a Size as JSON
	// Close is the channel of messages that name a channel which has ended, and the server says goodbye after
	// its last message. With 0 an empty message of Input is the end of the input.
	Close byte
}

// The protocols. Other versions of Drover and of kubectl speak them too, so their numbers stay.
var (
	// Kubernetes is v5.channel.k8s.io.
	Kubernetes = Protocol{End: 3, Resize: 4, Close: 255}
	// Control is spoken with a drover-machine.
	Control = Protocol{Start: 3, End: 4, Resize: 5}
)

// Size is the size of a terminal in characters.
type Size struct {
	Width  uint16 `json:"width"`
	Height uint16 `json:"height"`
}

// Command is a program to run in a server or guest.
type Command struct {
	// Args are the program and its arguments, at least one. No shell interprets them.
	Args []string
	// Stdin is nil for a command without input. It is read until io.EOF.
	Stdin io.Reader
	// Stdout and Stderr receive the output. With TTY everything goes to Stdout.
	Stdout, Stderr io.Writer
	// TTY gives the command a terminal. Resize has its size, again at each change.
	TTY    bool
	Resize <-chan Size
}

// ChunkSize limits the content of a message that is sent, in bytes, and how much is copied at a time.
const ChunkSize = 16 << 10

// Settings are the protocol and limits of a stream.
type Settings struct {
	Protocol Protocol
	Clock    clock.WithTicker
	// PingEvery is the interval between two signs of life, and SilentWithin limits the time without any from the
	// other end. SendWithin limits how long a message may wait for the other end to read, and LingerFor how
	// long the other end may take to read the last one.
	PingEvery, SilentWithin, SendWithin, LingerFor time.Duration
	// MaxMessage limits a message that is received, in bytes.
	MaxMessage int64
	// Explain returns why a stream has ended whose connection fails, or whose other end has violated the protocol
	// (ViolationError) or was silent (ErrSilent).
	Explain func(error) error
	// Count, unless nil, is called with the bytes of input that were received, or of output that were sent.
	Count func(received, sent int)
}

// Stream is one end of a stream.
type Stream struct {
	Settings

	ctx     context.Context // ends with the stream
	end     context.CancelCauseFunc
	ws      *websocket.Conn
	writing sync.Mutex
	left    chan struct{} // closed once ServeInput receives nothing more
}

// New returns one end of a stream over a WebSocket. The stream ends with ctx, which end ends.
func New(ctx context.Context, end context.CancelCauseFunc, ws *websocket.Conn, o Settings) *Stream {
	s := &Stream{Settings: o, ctx: ctx, end: end, ws: ws, left: make(chan struct{})}
	ws.SetReadLimit(o.MaxMessage)
	answer := ws.PingHandler()
	ws.SetPingHandler(func(data string) error { return errors.Join(s.allowSilence(), answer(data)) })
	ws.SetPongHandler(func(string) error { return s.allowSilence() })
	go s.keepAlive()
	return s
}

// keepAlive sends pings, whose answers prove that the other end lives. It sends pongs too, since an end that does not
// read, as while a command does not take its input, does not answer the pings of the other.
func (s *Stream) keepAlive() {
	ticker := s.Clock.NewTicker(s.PingEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-ticker.C():
		}
		for _, kind := range []int{websocket.PingMessage, websocket.PongMessage} {
			// A deadline that passes spoils the connection, so it is as long as for any message.
			if err := s.ws.WriteControl(kind, nil, s.Clock.Now().Add(s.SendWithin)); err != nil {
				_ = s.endWith(err)
				return
			}
		}
	}
}

// allowSilence restarts the time within which the other end has to send something.
func (s *Stream) allowSilence() error { return s.ws.SetReadDeadline(s.Clock.Now().Add(s.SilentWithin)) }

// endWith ends the stream for an error, and returns why it has ended: for this error or an earlier one. It
// returns nil for nil.
func (s *Stream) endWith(err error) error {
	if err == nil {
		return nil
	}
	s.end(s.Explain(err))
	return context.Cause(s.ctx)
}

// Send sends a message. An error ends the stream.
func (s *Stream) Send(channel byte, content []byte) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if err := s.ws.SetWriteDeadline(s.Clock.Now().Add(s.SendWithin)); err != nil {
		return s.endWith(err)
	}
	w, err := s.ws.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return s.endWith(err)
	}
	_, err = w.Write([]byte{channel})
	if err == nil {
		_, err = w.Write(content)
	}
	return s.endWith(errors.Join(err, w.Close()))
}

// SendJSON sends a message with JSON.
func (s *Stream) SendJSON(channel byte, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return s.Send(channel, text)
}

// Writer returns a writer of a channel. Another end that does not read ends the stream.
func (s *Stream) Writer(channel byte) io.Writer { return writer{s, channel} }

type writer struct {
	*Stream

	channel byte
}

// Write implements io.Writer.
func (w writer) Write(p []byte) (written int, err error) {
	for part := range slices.Chunk(p, ChunkSize) { // each has a separate deadline
		if err := w.Send(w.channel, part); err != nil {
			return written, err
		}
		written += len(part)
		w.count(0, len(part))
	}
	return written, nil
}

func (s *Stream) count(received, sent int) {
	if s.Count != nil {
		s.Count(received, sent)
	}
}

// Finish sends the last message, and gives the other end time to read it: a connection that is closed before all of
// it was read loses what was sent. ServeInput has to run, or to have returned.
func (s *Stream) Finish(last []byte) {
	if s.Send(s.Protocol.End, last) == nil && s.sayGoodbye() == nil {
		timer := s.Clock.NewTimer(s.LingerFor)
		defer timer.Stop()
		select {
		case <-s.left:
		case <-timer.C():
		}
	}
	s.Close()
}

// sayGoodbye tells the other end that no message follows.
func (s *Stream) sayGoodbye() error {
	if s.Protocol.Close == 0 {
		return nil
	}
	text := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	return s.ws.WriteControl(websocket.CloseMessage, text, s.Clock.Now().Add(s.LingerFor))
}

// Close ends the stream at once. ServeInput has to run, or to have returned.
func (s *Stream) Close() {
	s.end(io.EOF)
	_ = s.ws.Close()
	<-s.left
}

// LostOutputError reports how many bytes of a log were removed before they were read. The next Read returns what comes
// after them.
type LostOutputError struct{ Stdout, Stderr int64 }

func (e *LostOutputError) Error() string {
	return fmt.Sprintf("%d bytes of standard output and %d of standard error were removed before they were read", e.Stdout, e.Stderr)
}

// IgnoreEOF returns nil for io.EOF, and other errors as they are.
func IgnoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Copy copies until io.EOF, with a new buffer.
func Copy(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, ChunkSize))
	return err
}
