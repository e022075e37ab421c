// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package imageagent

import (
	"bytes"
	"context"
	"io"
	"net"
	"testing"

	"github.com/hashicorp/yamux"

	"cloudnative.tw/drover/internal/guest/client"
	"cloudnative.tw/drover/internal/guest/wire"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
)

var nonce = bytes.Repeat([]byte("nonce"), 6)

// serveSessions is a guest that answers each greeting, and serves nothing else.
func serveSessions(conn net.Conn) {
	sessions := wire.NewSessions(nonce)
	in, out := io.Pipe()
	sessions.Data = func(p []byte) { _, _ = out.Write(p) }
	sessions.Begin = func(id []byte) {
		if wire.Answer(conn, id) == nil {
			_, _ = yamux.Server(struct {
				io.Reader
				io.Writer
				io.Closer
			}{in, conn, conn}, wire.Config())
		}
	}
	buffer := make([]byte, 4096)
	for {
		n, err := conn.Read(buffer)
		sessions.Feed(buffer[:n])
		if err != nil {
			return
		}
	}
}

// TestEndSession checks that a reset ends the session with the program that ran, and not the one with the next program, for
// which a caller may wait already.
func TestEndSession(t *testing.T) {
	t.Parallel()
	boots := make(chan struct{}, 1)
	a := New(nonce, func(ctx context.Context) (net.Conn, error) {
		select {
		case <-boots:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		host, guest := net.Pipe()
		go serveSessions(guest)
		return host, nil
	})
	a.EndSession() // without a session
	boots <- struct{}{}
	first, err := a.openSession(t.Context())
	assert.NoError(t, err)
	again, err := a.openSession(t.Context())
	assert.NoError(t, err)
	assert.True(t, again == first, "a second caller gets another session")
	a.EndSession()
	awaitEnd(t, first)

	next := make(chan *client.Client, 1)
	go func() {
		second, _ := a.openSession(t.Context())
		next <- second
	}()
	assert.Eventually(t, "a caller to wait for the next program", func(testing.TB) error {
		return assert.ErrorUnless(len(a.opening) == 1, "it does not wait")
	})
	a.EndSession()
	boots <- struct{}{}
	second := assert.Receive(t, "the next session", next)
	third, err := a.openSession(t.Context())
	assert.NoError(t, err)
	assert.True(t, second != nil && third == second, "the session with the next program was ended")
	assert.NoError(t, third.Close())
}

func awaitEnd(t *testing.T, session *client.Client) {
	t.Helper()
	assert.Eventually(t, "the session to end", func(testing.TB) error {
		select {
		case <-session.Done():
			return nil
		default:
			return assert.ErrorUnless(false, "it goes on")
		}
	})
}

// TestInputOfBootingGuest checks that input waits for a guest whose program does not answer yet, until its caller leaves.
func TestInputOfBootingGuest(t *testing.T) {
	t.Parallel()
	tries, ended := make(chan struct{}), make(chan error, 1)
	a := New(nonce, func(ctx context.Context) (net.Conn, error) {
		select {
		case tries <- struct{}{}:
			return nil, failure.ErrSilent
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	})
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		ended <- assert.ErrorOf(a.Exec(ctx, terminal.Command{Args: []string{InputCommand}, Stdin: bytes.NewReader(nil), Stdout: io.Discard}))
	}()
	assert.Receive(t, "the first try", tries)
	assert.Receive(t, "the next try", tries)
	leave()
	assert.ErrorIs(t, "the caller who leaves", assert.Receive(t, "the end", ended), context.Canceled)
}
