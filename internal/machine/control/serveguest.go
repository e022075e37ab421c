// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/websocket"

	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

// Paths of the console and of exec, which are WebSockets, and of calls.
const (
	consolePath    = "/v1/console"
	execPath       = "/v1/exec"
	interfacesPath = "/v1/interfaces"
	networkPath    = "/v1/network"
)

var upgrader = websocket.Upgrader{ReadBufferSize: 4 << 10, WriteBufferSize: terminal.ChunkSize + 1}

// guestHandler serves the calls and streams of Guest.
type guestHandler struct {
	guest       Guest
	inputWithin time.Duration
	streams     chan struct{} // a semaphore with failure.MaxStreams places
}

// newGuestHandler returns a handler of Guest. If commands do not take input while they run, their input must
// end within inputWithin.
func newGuestHandler(g Guest, inputWithin time.Duration) http.Handler {
	h := &guestHandler{g, inputWithin, make(chan struct{}, failure.MaxStreams)}
	mux := http.NewServeMux()
	handleCall(mux, "GET "+interfacesPath, func(r *http.Request) (any, error) { return g.Interfaces(r.Context()) })
	handleCall(mux, "GET "+networkPath, func(r *http.Request) (any, error) { return g.NetworkStatistics(r.Context()) })
	mux.HandleFunc("GET "+consolePath, h.limitStreams(h.serveConsole))
	mux.HandleFunc("GET "+execPath, h.limitStreams(h.serveExec))
	return mux
}

// limitStreams refuses streams beyond failure.MaxStreams.
func (h *guestHandler) limitStreams(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.streams <- struct{}{}:
			defer func() { <-h.streams }()
			serve(w, r)
		default:
			sendAnswer(w, nil, failure.ErrTooManyStreams)
		}
	}
}

// serveConsole attaches a stream to the console.
func (h *guestHandler) serveConsole(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	console, err := h.guest.Console(ctx, r.URL.Query().Has("type"))
	if err != nil {
		sendAnswer(w, nil, err)
		return
	}
	defer func() { _ = console.Close() }()
	s, ok := upgradeToStream(ctx, w, r)
	if !ok {
		return
	}
	context.AfterFunc(s.ctx, cancel) //nolint:contextcheck // s.ctx is derived from the request's context
	go s.ServeInput(console, nil)
	s.finish(0, terminal.Copy(s.Writer(terminal.Output), console))
}

// serveExec runs a command, whose arguments, input and output are messages of the stream.
func (h *guestHandler) serveExec(w http.ResponseWriter, r *http.Request) {
	s, ok := upgradeToStream(r.Context(), w, r)
	if !ok {
		return
	}
	var message commandMessage
	if channel, content, err := s.Receive(); err != nil || channel != terminal.Control.Start || json.Unmarshal(content, &message) != nil {
		s.end(errRequest)
		return
	}
	stdin, input := io.Pipe()
	if !message.NoStdin && !h.guest.TakesInput() {
		defer time.AfterFunc(h.inputWithin, func() { _ = input.CloseWithError(failure.ErrInputOpen) }).Stop()
	}
	sizes := make(chan terminal.Size, 1)
	command := terminal.Command{
		Args: message.Args, Env: message.Env, User: message.User, WorkingDir: message.WorkingDir, TTY: message.TTY, Resize: sizes,
		Stdout: s.Writer(terminal.Output), Stderr: s.Writer(terminal.Errors),
	}
	if message.NoStdin {
		_ = stdin.Close()
	} else {
		command.Stdin = stdin
	}
	go s.ServeInput(input, sizes)
	code, err := h.guest.Exec(s.ctx, command) //nolint:contextcheck // s.ctx is derived from the request's context
	_ = stdin.Close()                         // discard further input
	s.finish(code, err)
}

// upgradeToStream turns a request into a stream.
func upgradeToStream(ctx context.Context, w http.ResponseWriter, r *http.Request) (*stream, bool) {
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, false // Upgrade has sent the error to the client
	}
	return newStream(ctx, ws, maxInput), true
}
