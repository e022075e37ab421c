// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
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

var upgrader = websocket.Upgrader{ReadBufferSize: 4 << 10, WriteBufferSize: messageSize}

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
			sendAnswer(w, nil, ErrBusy)
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
	go func() { s.end(s.receiveInput(console, nil)) }()
	_, err = io.CopyBuffer(outgoing{s, channelOutput}, struct{ io.Reader }{console}, make([]byte, messageSize))
	s.closeWith(0, err)
}

// serveExec runs a command whose arguments, input and output pass through a stream.
func (h *guestHandler) serveExec(w http.ResponseWriter, r *http.Request) {
	s, ok := upgradeToStream(r.Context(), w, r)
	if !ok {
		return
	}
	var message commandMessage
	if channel, content, err := s.receiveMessage(); err != nil || channel != channelStart || json.Unmarshal(content, &message) != nil {
		s.end(errRequest)
		return
	}
	stdin, input := io.Pipe()
	if !h.guest.TakesInput() {
		defer time.AfterFunc(h.inputWithin, func() { _ = input.CloseWithError(ErrInputOpen) }).Stop()
	}
	sizes := make(chan TerminalSize, 1)
	command := Command{
		Args: message.Args, TTY: message.TTY, Resize: sizes,
		Stdin: stdin, Stdout: outgoing{s, channelOutput}, Stderr: outgoing{s, channelErrors},
	}
	go func() {
		err := s.receiveInput(input, sizes)
		_ = input.CloseWithError(err) // no effect if its end was received
		s.end(err)
	}()
	code, err := h.guest.Exec(s.ctx, command) //nolint:contextcheck // it is the request's
	_ = stdin.Close()                         // discard further input
	s.closeWith(code, err)
}

// upgradeToStream turns a request into a stream.
func upgradeToStream(ctx context.Context, w http.ResponseWriter, r *http.Request) (*stream, bool) {
	ws, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return nil, false // the client has its answer
	}
	return newStream(ctx, ws, maxInput), true
}

// receiveInput writes what the other end sends to a writer, until the other end leaves. It closes the
// writer at the end of the input. sizes gets the last size of the terminal; nil refuses sizes.
func (s *stream) receiveInput(writer io.WriteCloser, sizes chan TerminalSize) error {
	for {
		channel, content, err := s.receiveMessage()
		switch {
		case err != nil:
			return err
		case channel == channelResize && sizes != nil:
			if err := replaceSize(sizes, content); err != nil {
				return err
			}
			continue
		case channel != channelInput:
			return errRequest
		case len(content) == 0:
			_ = writer.Close()
			continue
		}
		if _, err := writer.Write(content); err != nil && !errors.Is(err, io.ErrClosedPipe) {
			return err
		}
	}
}

// replaceSize replaces the size that waits in a channel, since only the last one counts.
func replaceSize(sizes chan TerminalSize, content []byte) error {
	var size TerminalSize
	if json.Unmarshal(content, &size) != nil {
		return errRequest
	}
	select {
	case <-sizes:
	default:
	}
	sizes <- size
	return nil
}
