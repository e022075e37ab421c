// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client connects the host to the agent (package guest/agent) in a machine that boots a container
// image. Package guest/wire has the protocol.
//
// Start with New. The guest is not trusted: the protocol limits the size of all data, and the client checks
// the data and keeps only what a call needs. A call ends with its context, whatever the guest does.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/yamux"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/wire"
)

// Kinds of failure; test with errors.Is.
var (
	// ErrLost means that the connection has ended, or that the guest has violated the protocol. A new
	// connection may succeed.
	ErrLost = errors.New("the connection to the guest's agent is lost")
	// ErrBadAnswer means that the guest has sent an invalid answer.
	ErrBadAnswer = errors.New("the guest's agent gives an invalid answer")
	// ErrRefused means that the guest has refused a request. The error contains the guest's message.
	ErrRefused = errors.New("the guest's agent refuses")
	// ErrBusy means that the guest serves as many requests as it can.
	ErrBusy = errors.New("the guest's agent is busy with other callers")
	// ErrTaken means that another caller writes to the entrypoint's input, and ErrEnded that the input has ended.
	ErrTaken = errors.New("another caller writes to the command")
	ErrEnded = errors.New("the input of the command has ended")
	// ErrNotFound means that the program is not in the image.
	ErrNotFound = errors.New("the command is not found in the guest")
	// ErrNotExecutable means that the program exists and cannot be executed.
	ErrNotExecutable = errors.New("the command cannot be executed in the guest")
)

// closeTimeout is how long the guest may take to close a stream that the host has closed. Then the client
// ends the whole session, so that a guest cannot make streams accumulate.
const closeTimeout = 30 * time.Second

// Client is a session with the agent of a machine.
type Client struct {
	session *yamux.Session
	// slots is a semaphore for streams. A stream has a slot until both ends have closed it.
	slots chan struct{}
	// verbs are the operations of the agent, nil until it was asked.
	verbs atomic.Pointer[[]string]
}

// New begins a session over a connection to the port config.AgentPort, which ends any earlier session of
// the guest. It waits until the agent answers or ctx ends. A booting guest answers once it has started the
// agent. Close, or a failure of New, closes the connection.
func New(ctx context.Context, conn io.ReadWriteCloser, nonce []byte) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	rest, err := wire.Greet(conn, nonce)
	if !stop() {
		return nil, fmt.Errorf("waiting for the guest's agent: %w", context.Cause(ctx))
	}
	if err == nil {
		c := &Client{slots: make(chan struct{}, wire.MaxStreams)}
		c.session, err = yamux.Client(connection{&wire.Filter{R: rest}, &wire.CoalescingWriter{W: conn}, conn}, wire.Config())
		if err == nil {
			return c, nil
		}
	}
	_ = conn.Close()
	return nil, fmt.Errorf("%w: %w", ErrLost, err)
}

// connection is a connection with a separate reader and writer.
type connection struct {
	io.Reader
	io.Writer
	io.Closer
}

// Close ends the session and its connection.
func (c *Client) Close() error { return c.session.Close() }

// Done is closed once the session has ended.
func (c *Client) Done() <-chan struct{} { return c.session.CloseChan() }

// call is a request and its answer.
type call struct {
	client *Client
	stream *yamux.Stream
	frames wire.Reader
	// stop unregisters interrupt, which would otherwise run when the caller's context ends.
	stop func() bool
	// over is closed by end.
	over chan struct{}
	// mu guards isOver, and the deadlines of the stream.
	mu     sync.Mutex
	isOver bool
}

// begin opens a stream and sends a request, if the agent has its operation.
func (c *Client) begin(ctx context.Context, r wire.Request) (*call, error) {
	if err := c.requireVerb(ctx, r.Op); err != nil {
		return nil, err
	}
	select {
	case c.slots <- struct{}{}:
	case <-c.Done():
		return nil, ErrLost
	case <-ctx.Done():
		return nil, fmt.Errorf("%w: %w", ErrBusy, context.Cause(ctx))
	}
	opened := make(chan *call, 1)
	var err error
	go func() {
		var k *call
		k, err = c.open(r)
		opened <- k
	}()
	select {
	case k := <-opened:
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrLost, err)
		}
		k.stop = context.AfterFunc(ctx, k.interrupt)
		return k, nil
	case <-ctx.Done(): // the write of the request blocks while the guest does not read
		go func() {
			if k := <-opened; k != nil {
				k.end()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// open opens a stream, and sends a request. The caller has taken a slot.
func (c *Client) open(r wire.Request) (*call, error) {
	stream, err := c.session.OpenStream()
	if err != nil {
		<-c.slots
		return nil, err
	}
	k := &call{client: c, stream: stream, frames: wire.Reader{R: stream}, stop: func() bool { return true }, over: make(chan struct{})}
	if err := wire.WriteJSON(stream, wire.FrameRequest, r); err != nil {
		k.end()
		return nil, err
	}
	return k, nil
}

// interrupt ends reads and writes of the stream. If a call does not end within a second, for example because
// the guest has sent an incomplete frame, interrupt ends the whole session.
func (k *call) interrupt() {
	k.mu.Lock()
	if !k.isOver {
		_ = k.stream.SetDeadline(time.Unix(1, 0))
	}
	k.mu.Unlock()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case <-k.over:
	case <-timer.C:
		_ = k.client.Close()
	}
}

// end closes the stream. Its slot becomes free once the guest has closed the stream too.
func (k *call) end() {
	k.stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isOver {
		k.isOver = true
		close(k.over)
		go k.awaitClose()
	}
}

func (k *call) awaitClose() {
	defer func() { <-k.client.slots }()
	timer := time.AfterFunc(closeTimeout, func() { _ = k.client.Close() })
	defer timer.Stop()
	_ = k.stream.Close()
	_ = k.stream.SetDeadline(time.Time{})
	if _, err := io.Copy(io.Discard, k.stream); err != nil {
		_ = k.client.Close() // after any error the session is not usable
	}
}

// failure returns the kind of error for a stream that has failed.
func (k *call) failure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, wire.ErrFrame) && !k.client.session.IsClosed(): // the end of a session may cut off a frame
		return fmt.Errorf("%w: %w", ErrBadAnswer, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

func (k *call) next(ctx context.Context) (wire.Kind, []byte, error) {
	kind, payload, err := k.frames.Next()
	if err != nil {
		return 0, nil, k.failure(ctx, err)
	}
	return kind, payload, nil
}

// response decodes a Response, and returns an error if it has a Reason.
func response(payload []byte) (r wire.Response, err error) {
	if err := json.Unmarshal(payload, &r); err != nil {
		return r, fmt.Errorf("%w: %.200q", ErrBadAnswer, err.Error())
	}
	message := config.Printable(r.Message, config.MaxMessage)
	switch r.Reason {
	case "":
		return r, nil
	case wire.ReasonNotFound:
		return r, fmt.Errorf("%w: %s", ErrNotFound, message)
	case wire.ReasonNotExecutable:
		return r, fmt.Errorf("%w: %s", ErrNotExecutable, message)
	case wire.ReasonTaken:
		return r, ErrTaken
	case wire.ReasonEnded:
		return r, ErrEnded
	case wire.ReasonBusy:
		return r, fmt.Errorf("%w: %s", ErrBusy, message)
	}
	return r, fmt.Errorf("%w: %s", ErrRefused, message)
}

// ask sends a request without data, and returns the response.
func (c *Client) ask(ctx context.Context, r wire.Request) (wire.Response, error) {
	call, err := c.begin(ctx, r)
	if err != nil {
		return wire.Response{}, err
	}
	defer call.end()
	kind, payload, err := call.next(ctx)
	if err != nil {
		return wire.Response{}, err
	}
	if kind != wire.FrameResponse {
		return wire.Response{}, fmt.Errorf("%w: a frame of kind %d in place of a response", ErrBadAnswer, kind)
	}
	return response(payload)
}
