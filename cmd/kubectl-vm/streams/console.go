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

// The waits between two tries to connect again.
const (
	firstRetry = 250 * time.Millisecond
	maxRetry   = 5 * time.Second
)

// ConsoleSession is a person at the console of a VM.
type ConsoleSession struct {
	Client          *Client
	Namespace, Name string
	In              io.Reader
	Out             io.Writer
	// Notes receives what is said about the connection, a line each.
	Notes io.Writer
	Clock clock.Clock
	// GiveUp is how long to try to connect again.
	GiveUp time.Duration

	terminal *Terminal // nil without one
	keyboard *Keyboard
	readOnly bool
}

// Run connects, and connects again when the connection is lost or the server restarts, until
// the person leaves or ctx ends. Without a terminal it returns once the server has stopped.
func (s *ConsoleSession) Run(ctx context.Context) error {
	s.terminal = OpenTerminal(s.In, s.Out)
	s.keyboard = ReadKeyboard(s.In, s.terminal != nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-s.keyboard.Left():
			cancel()
		case <-ctx.Done():
		}
	}()
	if s.terminal != nil {
		s.printNote("Console of %s/%s. Ctrl-] leaves.", s.Namespace, s.Name)
		restore, err := s.terminal.MakeRaw()
		if err != nil {
			return err
		}
		defer s.printNote("Left the console.")
		defer restore()
	}
	return s.stayConnected(ctx)
}

// stayConnected returns the first error that connecting again cannot cure. The very first
// connection is tried once.
func (s *ConsoleSession) stayConnected(ctx context.Context) error {
	connected, err := s.connect(ctx)
	for ctx.Err() == nil && connected && s.mayReturn(err) {
		if EndReason(err) == streams.ReasonConsoleTaken {
			s.readOnly = true
		}
		s.printNote("%s. Connecting again, from the last lines on; Ctrl-] leaves.", describeEnd(err))
		connected, err = s.connectAgain(ctx)
	}
	if hasEnded := ctx.Err() != nil || (s.terminal == nil && EndReason(err) == streams.ReasonServerStopped); !hasEnded {
		return err
	}
	return nil
}

// connectAgain tries until a connection was there, or GiveUp has passed.
func (s *ConsoleSession) connectAgain(ctx context.Context) (connected bool, err error) {
	end := s.Clock.Now().Add(s.GiveUp)
	for wait := firstRetry; ; wait = min(2*wait, maxRetry) {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.Clock.After(wait):
		}
		if s.terminal != nil {
			s.keyboard.Drop()
		}
		connected, err = s.connect(ctx)
		switch {
		case connected, !s.mayReturn(err), ctx.Err() != nil:
			return connected, err
		case s.Clock.Now().After(end):
			return false, fmt.Errorf("no console for %s: %w", s.GiveUp, err)
		}
	}
}

// connect reports whether there was a connection, and how it ended.
func (s *ConsoleSession) connect(ctx context.Context) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	used := &firstUse{writer: s.Out}
	query := url.Values{"stdin": {strconv.FormatBool(!s.readOnly)}, "stdout": {"true"}}
	o := remotecommand.StreamOptions{Stdout: used, Tty: s.terminal != nil}
	if !s.readOnly {
		used.reader = s.keyboard.For(ctx)
		o.Stdin = used
	}
	if s.terminal != nil {
		o.TerminalSizeQueue = s.terminal.WatchSize(ctx)
		query.Set("tty", "true")
	}
	err = s.Client.Connect(ctx, s.Client.URL(s.Namespace, s.Name, streams.Console, query), o)
	return used.seen.Load(), err
}

// printNote prints a line, which also starts a line where the terminal is raw.
func (s *ConsoleSession) printNote(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Notes, "\r\n%s\r\n", printable.Line(fmt.Sprintf(format, args...)))
}

// mayReturn reports whether the console may be there again later: the connection was lost,
// the server restarts, no controller serves it now, or someone else writes to it.
func (s *ConsoleSession) mayReturn(err error) bool {
	if refused := (*httpstream.UpgradeFailureError)(nil); errors.As(err, &refused) {
		return apierrors.IsServiceUnavailable(refused.Cause) || apierrors.IsConflict(refused.Cause) || apierrors.IsTooManyRequests(refused.Cause)
	}
	reason := EndReason(err)
	if reason == streams.ReasonServerStopped {
		return s.terminal != nil
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

// firstUse notes whether a connection was there: only then is anything read or written.
type firstUse struct {
	reader io.Reader
	writer io.Writer
	seen   atomic.Bool
}

// Read implements io.Reader.
func (f *firstUse) Read(p []byte) (int, error) {
	f.seen.Store(true)
	return f.reader.Read(p)
}

// Write implements io.Writer.
func (f *firstUse) Write(p []byte) (int, error) {
	f.seen.Store(true)
	return f.writer.Write(p)
}
