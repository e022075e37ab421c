// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

const (
	// maxOutput is more than a machine sends in a message. maxInput is more than a client sends, whose first
	// message has a command.
	maxOutput, maxInput = 32 << 10, 256 << 10
	// sendWithin limits how long a message may wait for the other end to read.
	sendWithin = 30 * time.Second
)

// commandMessage is a command that is to be run, the first message to the machine.
type commandMessage struct {
	Args []string `json:"args"`
	TTY  bool     `json:"tty,omitempty"`
}

// ending is how a stream has ended, the last message from the machine.
type ending struct {
	ExitCode int    `json:"exitCode,omitempty"`
	Failure  string `json:"failure,omitempty"`
}

// stream is one end of a stream.
type stream struct {
	*terminal.Stream

	ctx context.Context // ends with the stream
	end context.CancelCauseFunc
}

// newStream returns one end of a stream over a WebSocket. It ends with ctx, and refuses larger messages
// than maxMessage.
func newStream(ctx context.Context, ws *websocket.Conn, maxMessage int64) *stream {
	ctx, end := context.WithCancelCause(ctx)
	context.AfterFunc(ctx, func() { _ = ws.Close() })
	return &stream{ctx: ctx, end: end, Stream: terminal.New(ctx, end, ws, terminal.Settings{
		Protocol: terminal.Control, Clock: clock.RealClock{}, MaxMessage: maxMessage, Explain: explainError,
		PingEvery: 20 * time.Second, SilentWithin: time.Minute, SendWithin: sendWithin, LingerFor: 5 * time.Second,
	})}
}

// deadlineAfter returns a deadline for the connection, which the system's clock measures.
func deadlineAfter(d time.Duration) time.Time { return time.Now().Add(d) } //nolint:forbidigo // see above

// errInput means that the input of a command could not be read.
var errInput = errors.New("reading the input of the command")

// sendFrom sends all that it reads, and then the end of the input. A failure to read ends the stream.
func (s *stream) sendFrom(reader io.Reader) {
	if err := terminal.Copy(s.Writer(terminal.Input), reader); err != nil {
		s.end(fmt.Errorf("%w: %w", errInput, err))
		return
	}
	_ = s.Send(terminal.Input, nil)
}

// finish sends how the stream has ended. A connection ends its stream.
func (s *stream) finish(code int, err error) {
	text, _ := json.Marshal(ending{code, failure.NameOf(err)}) // a number and a word
	s.Finish(text)
}

// readEnding returns the exit code or the failure of an ending.
func readEnding(content []byte) (exitCode int, err error) {
	var e ending
	if json.Unmarshal(content, &e) != nil {
		return 0, failure.ErrProtocol
	}
	err = failure.ByName(e.Failure)
	if errors.Is(err, failure.ErrProtocol) {
		return 0, err
	}
	return e.ExitCode, err
}
