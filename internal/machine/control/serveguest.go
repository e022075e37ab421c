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

// Paths of the streams, which are WebSockets, and of calls.
const (
	consolePath    = "/v1/console"
	execPath       = "/v1/exec"
	interfacesPath = "/v1/interfaces"
	networkPath    = "/v1/network"
)

// maxStreams limits the streams of a machine.
const maxStreams = 32

var upgrader = websocket.Upgrader{ReadBufferSize: 4 << 10, WriteBufferSize: terminal.ChunkSize + 1}

// guestHandler serves the calls and streams of Guest.
type guestHandler struct {
	guest       Guest
	inputWithin time.Duration
	streams     chan struct{} // has one value for each open stream
}

// newGuestHandler returns a handler of Guest. The input of a command has to end within a time.
func newGuestHandler(g Guest, inputWithin time.Duration) http.Handler {
	h := &guestHandler{g, inputWithin, make(chan struct{}, maxStreams)}
	mux := http.NewServeMux()
	handleCall(mux, "GET "+interfacesPath, func(r *http.Request) (any, error) { return g.Interfaces(r.Context()) })
	handleCall(mux, "GET "+networkPath, func(r *http.Request) (any, error) { return g.NetworkStatistics(r.Context()) })
	mux.HandleFunc("GET "+consolePath, h.limitStreams(h.serveConsole))
	mux.HandleFunc("GET "+execPath, h.limitStreams(h.serveExec))
	return mux
}

// limitStreams refuses streams beyond maxStreams.
func (h *guestHandler) limitStreams(serve http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case h.streams <- struct{}{}:
			defer func() { <-h.streams }()
			serve(w, r)
		default:
			sendAnswer(w, nil, failure.ErrBusy)
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
	context.AfterFunc(s.ctx, cancel) //nolint:contextcheck // it is the request's
	go s.ServeInput(console, nil)
	s.finish(0, terminal.Copy(s.Writer(terminal.Output), console))
}

// serveExec runs a command whose arguments, input and output pass through a stream.
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
	if !h.guest.TakesInput() {
		defer time.AfterFunc(h.inputWithin, func() { _ = input.CloseWithError(failure.ErrInputOpen) }).Stop()
	}
	sizes := make(chan terminal.Size, 1)
	command := terminal.Command{
		Args: message.Args, TTY: message.TTY, Resize: sizes,
		Stdin: stdin, Stdout: s.Writer(terminal.Output), Stderr: s.Writer(terminal.Errors),
	}
	go s.ServeInput(input, sizes)
	code, err := h.guest.Exec(s.ctx, command) //nolint:contextcheck // it is the request's
	_ = stdin.Close()                         // discard further input
	s.finish(code, err)
}

// upgradeToStream turns a request into a stream.
func upgradeToStream(ctx context.Context, w http.ResponseWriter, r *http.Request) (*stream, bool) {
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, false // the client has its answer
	}
	return newStream(ctx, ws, maxInput), true
}
