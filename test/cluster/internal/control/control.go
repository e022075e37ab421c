// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package control sends commands to the processes of a cluster, by HTTP over Unix sockets in
// the cluster's folder, which only root can use.
package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"cloudnative.tw/drover/test/assert"
)

// Handler returns a handler that makes a call, and answers with its error or 204.
func Handler(call func(*http.Request) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if err := call(r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// Serve answers at a socket until the process ends. The socket of an earlier process is
// replaced.
func Serve(ctx context.Context, socket string, handler http.Handler) error {
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	return nil
}

// Post sends a command and returns its error.
func Post(ctx context.Context, socket, path string) error {
	return do(ctx, http.MethodPost, socket, path)
}

// Get requests a path whose answer is only success or an error.
func Get(ctx context.Context, socket, path string) error {
	return do(ctx, http.MethodGet, socket, path)
}

func do(ctx context.Context, method, socket, path string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	request, err := http.NewRequestWithContext(ctx, method, "http://cluster"+path, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode == http.StatusNoContent {
		return err
	}
	return fmt.Errorf("%s: %s", strings.TrimPrefix(path, "/"), strings.TrimSpace(string(answer)))
}

// Outcome is the result of a start, for which clients can wait.
type Outcome struct {
	known chan struct{}
	err   error
}

// NewOutcome returns an outcome that is not known yet.
func NewOutcome() *Outcome { return &Outcome{known: make(chan struct{})} }

// Set makes the outcome known, once.
func (o *Outcome) Set(err error) {
	o.err = err
	close(o.known)
}

// Serve answers GET /started when the outcome is known.
func (o *Outcome) Serve(mux *http.ServeMux) {
	mux.HandleFunc("GET /started", Handler(func(r *http.Request) error {
		select {
		case <-o.known:
			return o.err
		case <-r.Context().Done():
			return r.Context().Err()
		}
	}))
}

// WithEnd returns a context that ends when a process does.
func WithEnd(ctx context.Context, ended <-chan struct{}) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-ended:
			cancel(errors.New("the process has ended"))
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// WaitUntilStarted returns the outcome of the start of a process that will serve at a
// socket, or an error if the process ends before.
func WaitUntilStarted(ctx context.Context, socket string, ended <-chan struct{}) (outcome error) {
	ctx, cancel := WithEnd(ctx, ended)
	defer cancel()
	err := assert.Poll(ctx, "the process serves", func() error {
		if outcome = Get(ctx, socket, "/started"); isNotServed(outcome) {
			return outcome
		}
		return nil
	})
	if err != nil {
		return err
	}
	return outcome
}

// isNotServed reports whether nothing answers at the socket.
func isNotServed(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED)
}
