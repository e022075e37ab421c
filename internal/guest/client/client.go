// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package client is the host's end of the agent in a container image's machine, which
// internal/guest/agent serves by the protocol of internal/guest/wire.
//
// Start with New. What answers may be hostile: what it sends is bounded by the protocol, checked, and
// kept only as far as a call needs it, and a call ends with its context whatever the guest does.
package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/yamux"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/wire"
)

// Kinds of failure; test with errors.Is.
var (
	// ErrLost means that the connection has ended, or the guest has left its protocol. A new one may succeed.
	ErrLost = errors.New("the connection to the guest's agent is lost")
	// ErrBadAnswer means that the guest has sent an impossible answer.
	ErrBadAnswer = errors.New("the guest's agent gives an invalid answer")
	// ErrRefused means that the guest cannot do what was asked, and says why.
	ErrRefused = errors.New("the guest's agent refuses")
	// ErrBusy means that the guest serves as many requests as it can.
	ErrBusy = errors.New("the guest's agent is busy with other callers")
	// ErrNotFound means that the program is not in the image.
	ErrNotFound = errors.New("the command is not found in the guest")
	// ErrNotExecutable means that the program exists and cannot be executed.
	ErrNotExecutable = errors.New("the command cannot be executed in the guest")
)

// settleWithin is how long the guest may take to end a stream that is over for the host. Then the
// whole session ends, so that no guest can make streams pile up here.
const settleWithin = 30 * time.Second

// Client has a session with the agent of a machine.
type Client struct {
	session *yamux.Session
	// slots has a value for each stream that exists, even if only the guest has still to end it.
	slots chan struct{}
}

// New begins a session by a connection to the socket of the port config.AgentPort. It ends whatever
// session the guest had before. It waits until the agent answers, or ctx ends: a guest that has not
// started it yet answers once it has. The connection is closed with the client, or when New fails.
func New(ctx context.Context, conn io.ReadWriteCloser, nonce []byte) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	rest, err := wire.Greet(conn, nonce)
	if !stop() {
		return nil, fmt.Errorf("waiting for the guest's agent: %w", context.Cause(ctx))
	}
	if err == nil {
		c := &Client{slots: make(chan struct{}, wire.MaxStreams)}
		c.session, err = yamux.Client(connection{&wire.Filter{R: rest}, &wire.Joined{W: conn}, conn}, wire.Config())
		if err == nil {
			return c, nil
		}
	}
	_ = conn.Close()
	return nil, fmt.Errorf("%w: %w", ErrLost, err)
}

// connection is the parts of a connection.
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
	// stop ends the watch of the caller's context.
	stop func() bool
	// over is closed once the caller has left.
	over chan struct{}
	// mu guards isOver, and the deadlines of the stream with it.
	mu     sync.Mutex
	isOver bool
}

// begin opens a stream and sends a request.
func (c *Client) begin(ctx context.Context, r wire.Request) (*call, error) {
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
	case <-ctx.Done(): // a guest that reads nothing holds the request back
		go func() {
			if k := <-opened; k != nil {
				k.end()
			}
		}()
		return nil, context.Cause(ctx)
	}
}

// open opens a stream in a place that was taken, and sends a request.
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

// interrupt ends reads and writes of the stream. A guest can keep a read from ending by a frame that
// it does not finish, and then the session has to end.
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

// end closes the stream, and gives its place free once the guest has closed it, too.
func (k *call) end() {
	k.stop()
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.isOver {
		k.isOver = true
		close(k.over)
		go k.settle()
	}
}

func (k *call) settle() {
	defer func() { <-k.client.slots }()
	watch := time.AfterFunc(settleWithin, func() { _ = k.client.Close() })
	defer watch.Stop()
	_ = k.stream.Close()
	_ = k.stream.SetDeadline(time.Time{})
	if _, err := io.Copy(io.Discard, k.stream); err != nil {
		_ = k.client.Close() // whatever it is, this session has ended
	}
}

// failure names why a stream has failed.
func (k *call) failure(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, wire.ErrFrame) && !k.client.session.IsClosed(): // else its end has cut the frame off
		return fmt.Errorf("%w: %w", ErrBadAnswer, err)
	}
	return fmt.Errorf("%w: %w", ErrLost, err)
}

// next returns the next frame.
func (k *call) next(ctx context.Context) (wire.Kind, []byte, error) {
	kind, payload, err := k.frames.Next()
	if err != nil {
		return 0, nil, k.failure(ctx, err)
	}
	return kind, payload, nil
}

// response reads the last frame's Response.
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
	case wire.ReasonBusy:
		return r, fmt.Errorf("%w: %s", ErrBusy, message)
	}
	return r, fmt.Errorf("%w: %s", ErrRefused, message)
}

// ask sends a request without data, and returns the response.
func (c *Client) ask(ctx context.Context, r wire.Request) (wire.Response, error) {
	k, err := c.begin(ctx, r)
	if err != nil {
		return wire.Response{}, err
	}
	defer k.end()
	kind, payload, err := k.next(ctx)
	if err != nil {
		return wire.Response{}, err
	}
	if kind != wire.FrameResponse {
		return wire.Response{}, fmt.Errorf("%w: a frame of kind %d in place of a response", ErrBadAnswer, kind)
	}
	return response(payload)
}
