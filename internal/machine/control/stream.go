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
	// maxOutput limits messages from a machine, and maxInput messages from a client, which may have a long
	// command.
	maxOutput, maxInput = 32 << 10, 256 << 10
	// sendWithin limits how long a message may wait for the other end to read.
	sendWithin = 30 * time.Second
)

// commandMessage is the first message to the machine: the command to run.
type commandMessage struct {
	Args       []string `json:"args"`
	Env        []string `json:"env,omitempty"`
	User       string   `json:"user,omitempty"`
	WorkingDir string   `json:"workingDir,omitempty"`
	TTY        bool     `json:"tty,omitempty"`
	// NoStdin is set if the command gets no input. A client of an earlier version sets it never, and ends the input at once.
	NoStdin bool `json:"noStdin,omitempty"`
}

// outcome is the last message of a stream from the machine, and the body of the answer to a call that failed.
type outcome struct {
	ExitCode int    `json:"exitCode,omitempty"`
	Failure  string `json:"failure,omitempty"`
}

// stream is one end of a console or of a command over a WebSocket.
type stream struct {
	*terminal.Stream

	ctx context.Context // ends with the stream
	end context.CancelCauseFunc
}

// newStream returns one end of a stream. The stream ends with ctx, or with a message that is larger than
// maxMessage.
func newStream(ctx context.Context, ws *websocket.Conn, maxMessage int64) *stream {
	ctx, end := context.WithCancelCause(ctx)
	context.AfterFunc(ctx, func() { _ = ws.Close() })
	return &stream{ctx: ctx, end: end, Stream: terminal.New(ctx, end, ws, terminal.Settings{
		Protocol: terminal.Control, Clock: clock.RealClock{}, MaxMessage: maxMessage, Explain: explainError,
		PingEvery: 20 * time.Second, SilentWithin: time.Minute, SendWithin: sendWithin, LingerFor: 5 * time.Second,
	})}
}

// deadlineAfter returns a deadline for a connection.
func deadlineAfter(d time.Duration) time.Time { return time.Now().Add(d) } //nolint:forbidigo // the kernel measures deadlines by the system's clock

// errInput means that the input of a command could not be read.
var errInput = errors.New("reading the input of the command")

// sendInput sends the content of reader, and then the end of the input. A failure to read ends the stream.
func (s *stream) sendInput(reader io.Reader) {
	if err := terminal.Copy(s.Writer(terminal.Input), reader); err != nil {
		s.end(fmt.Errorf("%w: %w", errInput, err))
		return
	}
	_ = s.Send(terminal.Input, nil)
}

// finish sends the outcome, and waits for the client to close the connection.
func (s *stream) finish(code int, err error) {
	text, _ := json.Marshal(outcome{code, failure.NameOf(err)}) // never fails
	s.Finish(text)
}

// readOutcome returns the exit code or the failure of an outcome.
func readOutcome(content []byte) (exitCode int, err error) {
	var o outcome
	if json.Unmarshal(content, &o) != nil {
		return 0, failure.ErrProtocol
	}
	err = failure.ByName(o.Failure)
	if errors.Is(err, failure.ErrProtocol) {
		return 0, err
	}
	return o.ExitCode, err
}
