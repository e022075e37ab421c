// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal carries a console, or a command's input and output, over a WebSocket. The first byte
// of each binary message names the message's channel.
//
// Start with Stream. There are two protocols, which number the channels differently: clients of Kubernetes use one,
// and Drover and a drover-machine use the other.
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
	Input  = 0 // the input of the command or console
	Output = 1 // the standard output of the command, or the output of the console
	Errors = 2 // the standard error of the command
)

// Protocol has the numbers of the other channels.
type Protocol struct {
	Start  byte // has the first message from a client; 0 if the protocol has no such message
	End    byte // has the last message to a client
	Resize byte // has a Size as JSON, for the terminal of the command
	// Close has messages that name a channel which has ended. The server also sends a WebSocket close message after
	// its last message. If Close is 0, the protocol has neither: an empty message on Input ends the input.
	Close byte
}

// The protocols. Their numbers must not change, since other versions of Drover and of kubectl use them.
var (
	// Kubernetes is the protocol v5.channel.k8s.io.
	Kubernetes = Protocol{End: 3, Resize: 4, Close: 255}
	// Control is the protocol between Drover and a drover-machine.
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
	// Env has entries of the form NAME=VALUE, in addition to the server's environment.
	Env []string
	// User is a name or ID, perhaps with a colon and a group, and WorkingDir is absolute. An empty one is the server's.
	User, WorkingDir string
	// Stdin is the input, which is read until io.EOF. It is nil for a command without input.
	Stdin io.Reader
	// Stdout and Stderr receive the output. With TTY all output goes to Stdout.
	Stdout, Stderr io.Writer
	// TTY gives the command a terminal. Resize sends the terminal's size at the start and after each change.
	TTY    bool
	Resize <-chan Size
}

// ChunkSize is the largest content of a sent message, in bytes, and the size of the buffers for copying.
const ChunkSize = 16 << 10

// Settings are the protocol and limits of a stream.
type Settings struct {
	Protocol Protocol
	Clock    clock.WithTicker
	// PingEvery is the interval between two pings, and SilentWithin limits how long the other end may send
	// nothing. SendWithin limits how long a message may wait for the other end to read it, and LingerFor how long
	// the other end may take to read the last message.
	PingEvery, SilentWithin, SendWithin, LingerFor time.Duration
	// MaxMessage is the largest message that may be received, in bytes.
	MaxMessage int64
	// Explain returns the cause of a stream's end, given the error of its connection. The error is a
	// ViolationError if the other end has violated the protocol, and wraps ErrSilent if the other end was silent.
	Explain func(error) error
	// Count, unless nil, is called with the number of bytes of input that were received, or of output that were sent.
	Count func(received, sent int)
}

// Stream is one end of a stream.
type Stream struct {
	Settings

	ctx      context.Context // ends with the stream
	end      context.CancelCauseFunc
	ws       *websocket.Conn
	writing  sync.Mutex
	received chan struct{} // closed when ServeInput has returned
}

// New returns one end of a stream over a WebSocket. The stream ends with ctx. end must cancel ctx.
func New(ctx context.Context, end context.CancelCauseFunc, ws *websocket.Conn, o Settings) *Stream {
	s := &Stream{Settings: o, ctx: ctx, end: end, ws: ws, received: make(chan struct{})}
	ws.SetReadLimit(o.MaxMessage)
	answer := ws.PingHandler()
	ws.SetPingHandler(func(data string) error { return errors.Join(s.allowSilence(), answer(data)) })
	ws.SetPongHandler(func(string) error { return s.allowSilence() })
	go s.keepAlive()
	return s
}

// keepAlive sends pings, whose answers prove that the other end lives. It also sends pongs by itself: while this end
// does not read, for example because a command does not read its input, it does not see the pings of the other end.
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
			// If a deadline passes, the connection is broken, so pings get as much time as other messages.
			if err := s.ws.WriteControl(kind, nil, s.Clock.Now().Add(s.SendWithin)); err != nil {
				_ = s.endWith(err)
				return
			}
		}
	}
}

// allowSilence gives the other end another SilentWithin to send something.
func (s *Stream) allowSilence() error { return s.ws.SetReadDeadline(s.Clock.Now().Add(s.SilentWithin)) }

// endWith ends the stream because of err, unless the stream has ended before, and returns the cause of the
// stream's end. If err is nil, it does nothing and returns nil.
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

// SendJSON sends a message that contains a value as JSON.
func (s *Stream) SendJSON(channel byte, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return s.Send(channel, text)
}

// Writer returns a writer that sends to a channel. If the other end does not read in time, the stream ends.
func (s *Stream) Writer(channel byte) io.Writer { return writer{s, channel} }

type writer struct {
	*Stream

	channel byte
}

// Write implements io.Writer.
func (w writer) Write(p []byte) (written int, err error) {
	for part := range slices.Chunk(p, ChunkSize) { // each part has a separate deadline
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

// Finish sends the last message, gives the other end time to read it, and closes the stream. A connection that is
// closed earlier may lose sent messages. Finish needs ServeInput to run, or to have returned.
func (s *Stream) Finish(last []byte) {
	if s.Send(s.Protocol.End, last) == nil && s.sendClose() == nil {
		timer := s.Clock.NewTimer(s.LingerFor)
		defer timer.Stop()
		select {
		case <-s.received:
		case <-timer.C():
		}
	}
	s.Close()
}

// sendClose sends a WebSocket close message, if the protocol has one.
func (s *Stream) sendClose() error {
	if s.Protocol.Close == 0 {
		return nil
	}
	text := websocket.FormatCloseMessage(websocket.CloseNormalClosure, "")
	return s.ws.WriteControl(websocket.CloseMessage, text, s.Clock.Now().Add(s.LingerFor))
}

// Close ends the stream at once. It needs ServeInput to run, or to have returned.
func (s *Stream) Close() {
	s.end(io.EOF)
	_ = s.ws.Close()
	<-s.received
}

// LostOutputError reports how many bytes of a log were removed before they were read. The next Read continues after
// these bytes.
type LostOutputError struct{ Stdout, Stderr int64 }

func (e *LostOutputError) Error() string {
	return fmt.Sprintf("%d bytes of standard output and %d of standard error were removed before they were read", e.Stdout, e.Stderr)
}

// IgnoreEOF returns nil for io.EOF, and any other error unchanged.
func IgnoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// Copy copies from r to w until io.EOF, with a new buffer. It does not use WriterTo and ReaderFrom.
func Copy(w io.Writer, r io.Reader) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{w}, struct{ io.Reader }{r}, make([]byte, ChunkSize))
	return err
}

// SplitReader reads standard output and standard error in the order in which they came.
type SplitReader interface {
	// ReadStream is as Read of io.Reader. It returns bytes of one stream, and reports whether that is standard error.
	ReadStream(p []byte) (n int, isStderr bool, err error)
}

// CopySplit copies each stream of r to its writer until io.EOF.
func CopySplit(stdout, stderr io.Writer, r SplitReader) error {
	for buffer := make([]byte, ChunkSize); ; {
		n, isStderr, err := r.ReadStream(buffer)
		w := stdout
		if isStderr {
			w = stderr
		}
		if n > 0 {
			if _, err := w.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return IgnoreEOF(err)
		}
	}
}
