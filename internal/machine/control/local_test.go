// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// localStub is a machine on this host whose answers a test sets.
type localStub struct {
	stub
	guestStub

	changed chan chan struct{} // what Changed returned
}

func (l *localStub) Start(context.Context) error { l.calls <- "start"; return l.stub.err }
func (l *localStub) Quit(context.Context) error  { l.calls <- "quit"; return l.stub.err }

func (l *localStub) Stop(_ context.Context, id string, within time.Duration) error {
	l.calls <- id
	l.calls <- within
	return l.stub.err
}

func (l *localStub) Changed() <-chan struct{} {
	next := make(chan struct{})
	l.changed <- next
	return next
}

// localOf returns a machine whose parts are all of one stub, without a network.
func localOf(l *localStub) Local {
	return Local{Machine: l, Guest: l, Run: l}
}

// serveLocal serves a machine, and returns what connects to it.
func serveLocal(t *testing.T, m Local) func(context.Context) (net.Conn, error) {
	t.Helper()
	path := filepath.Join(framework.ShortTempDir(t), "socket")
	s := NewLocalServer(t.Context(), "token", m)
	listener := framework.Listen(t, "unix", path)
	go func() { _ = s.Serve(listener) }()
	t.Cleanup(func() { _ = s.http.Close() })
	return func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) }
}

// TestLocalCalls checks the calls that only a machine on this host has, and that all take the token.
func TestLocalCalls(t *testing.T) {
	t.Parallel()
	m := &localStub{stub: stub{calls: make(chan any, 2), status: Status{State: StateRunning, RunState: "running"}}}
	dial := serveLocal(t, localOf(m))
	c := NewLocalClient("token", dial)
	s, err := c.Status(t.Context())
	assert.True(t, err == nil && s.RunState == "running", "the status is %+v, %v", s, err)
	assert.NoError(t, errors.Join(c.Start(t.Context()), c.Quit(t.Context())))
	first, second := <-m.calls, <-m.calls
	assert.True(t, first == "start" && second == "quit", "called were %v and %v", first, second)
	assert.NoError(t, c.Stop(t.Context(), "17", 1500*time.Millisecond))
	id, within := <-m.calls, <-m.calls
	assert.True(t, id == "17" && within == 1500*time.Millisecond, "stopped by %v within %v", id, within)
	m.stub.err = failure.ErrNotRunning
	assert.ErrorIs(t, "a refused start", c.Start(t.Context()), failure.ErrNotRunning)

	stranger := NewLocalClient("another", dial)
	for name, call := range map[string]func() error{
		"a status":     func() error { return assert.ErrorOf(stranger.Status(t.Context())) },
		"a stop":       func() error { return stranger.Stop(t.Context(), "1", 0) },
		"a console":    func() error { return assert.ErrorOf(stranger.Console(t.Context(), false)) },
		"interfaces":   func() error { return assert.ErrorOf(stranger.Interfaces(t.Context())) },
		"figures":      func() error { return assert.ErrorOf(stranger.NetworkStatistics(t.Context())) },
		"a watch":      func() error { return stranger.Watch(t.Context(), func() {}) },
		"an empty one": func() error { return NewLocalClient("", dial).Start(t.Context()) },
	} {
		if name != "an empty one" || len(m.calls) == 0 {
			assert.ErrorIs(t, name, call(), failure.ErrProtocol)
		}
	}
}

// TestEpochs checks that a machine refuses a leader whose epoch is lower than an earlier caller's, and serves all others.
func TestEpochs(t *testing.T) {
	t.Parallel()
	m := &localStub{stub: stub{calls: make(chan any, 10)}}
	dial := serveLocal(t, localOf(m))
	start := func(epoch uint64) error {
		c := NewLocalClient("token", dial)
		c.SetEpoch(epoch)
		return c.Start(t.Context())
	}
	for _, epoch := range []uint64{7, 7, 9, 0, 9} {
		assert.NoError(t, start(epoch))
	}
	assert.ErrorIs(t, "a lower epoch", start(8), failure.ErrFenced)
	assert.NoError(t, start(0))
	assert.Equal(t, "calls reached the machine", len(m.calls), 6)
	c := NewLocalClient("token", dial)
	c.header.Set(epochHeader, "-1")
	assert.ErrorIs(t, "no number", c.Start(t.Context()), failure.ErrProtocol)
}

// TestWatch checks that who watches is told of each change, and of the machine's end.
func TestWatch(t *testing.T) {
	t.Parallel()
	m := &localStub{changed: make(chan chan struct{})}
	ctx, end := context.WithCancel(t.Context())
	defer end()
	path := filepath.Join(framework.ShortTempDir(t), "socket")
	s := NewLocalServer(ctx, "token", localOf(m))
	listener := framework.Listen(t, "unix", path)
	go func() { _ = s.Serve(listener) }()
	c := NewLocalClient("token", func(ctx context.Context) (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "unix", path) })
	told, over := make(chan struct{}), make(chan error)
	go func() { over <- c.Watch(t.Context(), func() { told <- struct{}{} }) }()
	for range 3 {
		next := <-m.changed
		<-told
		close(next)
	}
	<-m.changed
	<-told
	end()
	assert.ErrorIs(t, "a watch of a machine that has ended", <-over, failure.ErrUnreachable)
}
