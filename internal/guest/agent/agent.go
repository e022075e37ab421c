// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package agent serves a container image's machine to its host, by the protocol of internal/guest/wire:
// commands, files, addresses, time. Start with Agent.Serve.
//
// The agent uses only those files of the image that a request names. It trusts the host, but bounds
// the host's requests all the same.
package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/yamux"

	"cloudnative.tw/drover/internal/guest/mounts"
	"cloudnative.tw/drover/internal/guest/process"
	"cloudnative.tw/drover/internal/guest/system"
	"cloudnative.tw/drover/internal/guest/users"
	"cloudnative.tw/drover/internal/guest/wire"
)

// Agent answers the host.
type Agent struct {
	Table *process.Table
	// Base has the settings of the entrypoint, which are the defaults of commands.
	Base Base
	// Lookup returns the user that the text USER or USER:GROUP means in the image.
	Lookup func(text string) (users.User, error)
	// HoldOutput holds the output of the entrypoint back until release is called.
	HoldOutput func() (release func())
	// Input is the input of the entrypoint.
	Input *Input
	// Mounts are the folders whose files the host replaces, nil for none.
	Mounts *mounts.Set

	slots chan struct{}
}

// Base has the settings that commands share with the entrypoint.
type Base struct {
	Env []string
	// Defaults are entries for names that Env does not have. HOME is the user's.
	Defaults []string
	User     string
	Dir      string
}

// Serve serves every host that sends the nonce through a port, until the port fails. A read that returns io.EOF
// means that the host is not connected at the moment.
func (a *Agent) Serve(port io.ReadWriter, nonce []byte) error {
	a.slots = make(chan struct{}, wire.MaxStreams)
	s := &server{agent: a, port: port}
	sessions := wire.NewSessions(nonce)
	sessions.Begin, sessions.Data = s.begin, s.data
	defer s.end()
	buffer := make([]byte, 64<<10)
	for {
		n, err := port.Read(buffer)
		sessions.Feed(buffer[:n])
		switch {
		case errors.Is(err, io.EOF):
			sessions.Reset()
			s.end()
		case err != nil:
			return err
		}
	}
}

// server has the current session of a port.
type server struct {
	agent *Agent
	port  io.ReadWriter
	// input takes what belongs to the session, nil without one.
	input *io.PipeWriter
	// over is closed once the session has stopped writing; it is nil before the first session.
	over chan struct{}
}

func (s *server) data(p []byte) {
	if s.input != nil {
		_, _ = s.input.Write(p) // a session that has ended takes nothing
	}
}

func (s *server) end() {
	if s.input != nil {
		_ = s.input.Close()
		s.input = nil
	}
}

// begin begins a session, once the one before has stopped writing.
func (s *server) begin(id []byte) {
	s.end()
	in, out := io.Pipe()
	before, over := s.over, make(chan struct{})
	s.input, s.over = out, over
	go func() {
		defer close(over)
		defer func() { _ = in.Close() }()
		if before != nil {
			<-before
		}
		if wire.Answer(s.port, id) == nil {
			s.agent.serveSession(conn{in, &wire.CoalescingWriter{W: s.port}, in})
		}
	}()
}

// conn is a session's end of the port.
type conn struct {
	io.Reader
	io.Writer
	io.Closer
}

// serveSession serves a session until it ends.
func (a *Agent) serveSession(c conn) {
	session, err := yamux.Server(c, wire.Config())
	if err != nil {
		return
	}
	defer func() { _ = session.Close() }()
	for {
		stream, err := session.AcceptStream()
		if err != nil {
			return
		}
		go a.serveStream(stream)
	}
}

// serveStream serves one request.
func (a *Agent) serveStream(stream *yamux.Stream) {
	defer func() { _ = stream.Close() }()
	var response wire.Response
	select {
	case a.slots <- struct{}{}:
		response = a.serve(stream)
		<-a.slots
	default:
		response = wire.Response{Reason: wire.ReasonBusy, Message: fmt.Sprintf("the guest's agent serves %d requests, which is the most", wire.MaxStreams)}
	}
	_ = wire.WriteJSON(stream, wire.FrameResponse, response)
}

// serve reads the request and answers it.
func (a *Agent) serve(stream io.ReadWriter) wire.Response {
	frames := &wire.Reader{R: stream}
	kind, text, err := frames.Next()
	if err != nil || kind != wire.FrameRequest {
		return failure(fmt.Errorf("a stream begins with no request: %w", errors.Join(err, wire.ErrFrame)))
	}
	var r wire.Request
	if err := json.Unmarshal(text, &r); err != nil {
		return failure(err)
	}
	response, err := a.answer(r, frames, stream)
	if err != nil {
		return failure(err)
	}
	return response
}

func (a *Agent) answer(r wire.Request, frames *wire.Reader, out io.Writer) (response wire.Response, err error) {
	switch r.Op {
	case wire.OpHello:
		response.Verbs = wire.Verbs
	case wire.OpExec:
		if r.Exec == nil || len(r.Exec.Args) == 0 {
			return response, errors.New("the request names no program")
		}
		return a.exec(*r.Exec, frames, out)
	case wire.OpInput:
		err = a.Input.serve(r.Exec != nil && r.Exec.Stdin, frames, out)
	case wire.OpInterfaces:
		response.Interfaces, err = system.Interfaces()
	case wire.OpSetTime:
		err = system.SetTime(r.Nanoseconds)
	case wire.OpReseed:
		err = system.Reseed(r.Seed[:min(len(r.Seed), wire.MaxSeed)])
	case wire.OpRead:
		err = a.readFiles(r.Path, out)
	case wire.OpHold:
		release := a.HoldOutput()
		defer release()
		_, _, err = frames.Next() // waits for the end of the stream: the host sends no frame
	case wire.OpWrite:
		response.Message, err = a.writeFiles(r.Path, frames)
	case wire.OpMounted:
		response.Mounted = a.Mounts.Revisions()
	case wire.OpMount:
		err = a.writeMount(frames)
	default:
		err = fmt.Errorf("the guest's agent does not know %.40q: its initramfs is of another Drover", r.Op)
	}
	return response, err
}

// failure is the response to a request that fails.
func failure(err error) wire.Response {
	r := wire.Response{Reason: wire.ReasonFailed, Message: fmt.Sprintf("%.1000s", err)}
	switch {
	case errors.Is(err, process.ErrNotFound):
		r.Reason = wire.ReasonNotFound
	case errors.Is(err, process.ErrNotExecutable):
		r.Reason = wire.ReasonNotExecutable
	case errors.Is(err, errTaken):
		r.Reason = wire.ReasonTaken
	case errors.Is(err, errEnded):
		r.Reason = wire.ReasonEnded
	}
	return r
}
