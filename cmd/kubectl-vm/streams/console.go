// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/utils/clock"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// The first and the longest wait between two tries to connect again.
const (
	firstRetry = 250 * time.Millisecond
	maxRetry   = 5 * time.Second
)

// ConsoleSession connects a terminal or a pipe to the console of a VM.
type ConsoleSession struct {
	Client          *Client
	Namespace, Name string
	In              io.Reader
	Out             io.Writer
	// Notes receives messages about the connection, one line each.
	Notes io.Writer
	Clock clock.Clock
	// RetryFor is how long to try to connect again before Run fails.
	RetryFor time.Duration
	// Terminal is the person's, or nil for a pipe. Each of its keys is sent.
	Terminal *Terminal
	// InputOnly does not show the output. Input that was sent when the connection was lost may be lost, so a pipe is not
	// connected again then.
	InputOnly bool
	// ReadOnly sends only the sizes of the terminal.
	ReadOnly bool

	keyboard *Keyboard
}

// Run connects, and connects again when the connection is lost or the server restarts, until
// the user leaves or ctx ends. Without a terminal it also returns when the server has stopped.
func (s *ConsoleSession) Run(ctx context.Context) error {
	s.keyboard = &Keyboard{lock: make(chan struct{}, 1)}
	if !s.ReadOnly {
		s.keyboard = ReadKeyboard(s.In, s.Terminal != nil)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.keyboard.Detached():
			cancel()
		case <-ctx.Done():
		}
	}()
	if s.Terminal != nil && !s.ReadOnly {
		s.printNote("Console of %s/%s. Ctrl-] leaves.", s.Namespace, s.Name)
		restore, err := s.Terminal.MakeRaw()
		if err != nil {
			return err
		}
		defer s.printNote("Left the console.")
		defer restore()
	}
	return s.stayConnected(ctx)
}

// HasLeft reports whether the user has typed Ctrl-], which detaches from the VM.
func (s *ConsoleSession) HasLeft() bool {
	select {
	case <-s.keyboard.Detached():
		return true
	default:
		return false
	}
}

// stayConnected connects, and connects again until it meets an error after which that cannot help. It
// returns such an error. If the first try to connect fails, stayConnected does not try again.
func (s *ConsoleSession) stayConnected(ctx context.Context) error {
	connected, err := s.connect(ctx)
	for ctx.Err() == nil && s.mayRetry(connected) && s.mayReconnect(err) {
		if EndReason(err) == streams.ReasonConsoleTaken {
			s.ReadOnly = true
		}
		s.printNote("%s. Connecting again, from the last lines on; Ctrl-] leaves.", describeEnd(err))
		connected, err = s.reconnect(ctx)
	}
	if hasEnded := ctx.Err() != nil || ((s.Terminal == nil || s.InputOnly) && EndReason(err) == streams.ReasonServerStopped); !hasEnded {
		return err
	}
	return nil
}

// mayRetry reports whether to connect again after a connection, or after the first try without one.
func (s *ConsoleSession) mayRetry(connected bool) bool {
	if s.InputOnly {
		return !connected || s.Terminal != nil
	}
	return connected
}

// reconnect tries to connect until a try succeeds, or until RetryFor has passed. Like connect, it
// returns when the connection has ended.
func (s *ConsoleSession) reconnect(ctx context.Context) (connected bool, err error) {
	end := s.Clock.Now().Add(s.RetryFor)
	for wait := firstRetry; ; wait = min(2*wait, maxRetry) {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.Clock.After(wait):
		}
		if s.Terminal != nil {
			s.keyboard.DropInput()
		}
		connected, err = s.connect(ctx)
		switch {
		case connected, !s.mayReconnect(err), ctx.Err() != nil:
			return connected, err
		case s.Clock.Now().After(end):
			return false, fmt.Errorf("the console could not be connected again within %s: %w", s.RetryFor, err)
		}
	}
}

// connect connects to the console until the connection ends. It reports whether there was a connection,
// and the error that ended it.
func (s *ConsoleSession) connect(ctx context.Context) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A reader that ends closes the input for the server, and leaving must not do that: so it ends after the connection.
	reading, stopReading := context.WithCancel(context.WithoutCancel(ctx))
	defer stopReading()
	recorded := &useRecorder{writer: s.Out}
	if s.InputOnly {
		recorded.writer = io.Discard
	}
	query := url.Values{"stdin": {strconv.FormatBool(!s.ReadOnly)}, "stdout": {strconv.FormatBool(!s.InputOnly)}}
	o := remotecommand.StreamOptions{Stdout: recorded, Tty: s.Terminal != nil}
	if !s.ReadOnly {
		recorded.reader = s.keyboard.NewReader(reading)
		o.Stdin = recorded
	}
	if s.Terminal != nil {
		o.TerminalSizeQueue = s.Terminal.WatchSize(ctx)
		query.Set("tty", "true")
	}
	err = s.Client.Connect(ctx, s.Client.URL(s.Namespace, s.Name, streams.Console, query), o)
	return recorded.used.Load(), err
}

// printNote prints a note on a separate line. A raw terminal needs \r for that.
func (s *ConsoleSession) printNote(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Notes, "\r\n%s\r\n", printable.Line(fmt.Sprintf(format, args...)))
}

// mayReconnect reports whether connecting again may succeed after err: the connection was lost, the
// server restarts, no controller serves the console now, or someone else has taken the input.
func (s *ConsoleSession) mayReconnect(err error) bool {
	if refused := (*httpstream.UpgradeFailureError)(nil); errors.As(err, &refused) {
		return apierrors.IsServiceUnavailable(refused.Cause) || apierrors.IsConflict(refused.Cause) || apierrors.IsTooManyRequests(refused.Cause)
	}
	reason := EndReason(err)
	if reason == streams.ReasonServerStopped {
		return s.Terminal != nil && !s.InputOnly
	}
	if reason == metav1.StatusReasonTimeout { // nobody has typed for hours
		return s.InputOnly
	}
	return reason == "" || reason == metav1.StatusReasonServiceUnavailable || reason == streams.ReasonConsoleTaken
}

func describeEnd(err error) string {
	if err == nil {
		return "The connection ended"
	}
	if reason, text := streams.SplitReason(err.Error()); reason != "" {
		return "The connection ended: " + text
	}
	return "The connection was lost"
}

// useRecorder records whether its reader or writer was used, which happens only after a connection is established.
type useRecorder struct {
	reader io.Reader
	writer io.Writer
	used   atomic.Bool
}

// Read implements io.Reader.
func (r *useRecorder) Read(p []byte) (int, error) {
	r.used.Store(true)
	return r.reader.Read(p)
}

// Write implements io.Writer.
func (r *useRecorder) Write(p []byte) (int, error) {
	r.used.Store(true)
	return r.writer.Write(p)
}
