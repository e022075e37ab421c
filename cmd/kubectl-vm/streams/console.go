// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/utils/clock"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
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
}

// Run connects, and connects again when the connection is lost or the server restarts. It
// returns nil once the person has left, or the input has ended and ctx is over.
func (s *ConsoleSession) Run(ctx context.Context) error {
	terminal := OpenTerminal(s.In, s.Out)
	keyboard := ReadKeyboard(s.In, terminal != nil)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-keyboard.Left():
			cancel()
		case <-ctx.Done():
		}
	}()
	if terminal != nil {
		s.note("Console of %s/%s. Ctrl-] leaves.", s.Namespace, s.Name)
		restore, err := terminal.MakeRaw()
		if err != nil {
			return err
		}
		defer s.note("Left the console.")
		defer restore()
	}
	return s.stayConnected(ctx, terminal, keyboard)
}

// stayConnected returns the first error that trying again cannot cure. The very first
// connection is tried once.
func (s *ConsoleSession) stayConnected(ctx context.Context, terminal *Terminal, keyboard *Keyboard) error {
	connected, err := s.connect(ctx, terminal, keyboard)
	for ctx.Err() == nil && connected && mayReturn(err) {
		s.note("%s; connecting again.", describeEnd(err))
		connected, err = s.connectAgain(ctx, terminal, keyboard)
	}
	if ctx.Err() != nil {
		return nil //nolint:nilerr // the person has left
	}
	return err
}

// connectAgain tries until a connection was there, or GiveUp has passed.
func (s *ConsoleSession) connectAgain(ctx context.Context, terminal *Terminal, keyboard *Keyboard) (connected bool, err error) {
	end := s.Clock.Now().Add(s.GiveUp)
	for wait := firstRetry; ; wait = min(2*wait, maxRetry) {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-s.Clock.After(wait):
		}
		if terminal != nil {
			keyboard.Drop()
		}
		connected, err = s.connect(ctx, terminal, keyboard)
		switch {
		case connected, !mayReturn(err), ctx.Err() != nil:
			return connected, err
		case s.Clock.Now().After(end):
			return false, fmt.Errorf("no console for %s: %w", s.GiveUp, err)
		}
	}
}

// connect reports whether there was a connection, and how it ended.
func (s *ConsoleSession) connect(ctx context.Context, terminal *Terminal, keyboard *Keyboard) (connected bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	used := &firstUse{reader: keyboard.For(ctx), writer: s.Out}
	o := remotecommand.StreamOptions{Stdin: used, Stdout: used, Tty: terminal != nil}
	query := url.Values{"stdin": {"true"}, "stdout": {"true"}}
	if terminal != nil {
		o.TerminalSizeQueue = terminal.WatchSize(ctx)
		query.Set("tty", "true")
	}
	err = s.Client.Connect(ctx, s.Client.URL(s.Namespace, s.Name, streams.Console, query), o)
	return used.seen.Load(), err
}

// note prints a line, which also starts a line where the terminal is raw.
func (s *ConsoleSession) note(format string, args ...any) {
	_, _ = fmt.Fprintf(s.Notes, "\r\n"+format+"\r\n", args...)
}

// mayReturn reports whether the console may be there again later: the connection was lost,
// the server restarts, or no controller serves it now. A nil error is the end of a server.
func mayReturn(err error) bool {
	var status *apierrors.StatusError
	var refused *httpstream.UpgradeFailureError
	if errors.As(err, &refused) {
		err = refused.Cause
	}
	if !errors.As(err, &status) {
		return true
	}
	return apierrors.IsServiceUnavailable(err) || apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err)
}

func describeEnd(err error) string {
	if err == nil {
		return "The server stopped"
	}
	return "The connection ended (" + err.Error() + ")"
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
