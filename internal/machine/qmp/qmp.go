// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qmp is a client of the QEMU Machine Protocol on a Unix socket.
//
// Start with Dial. QEMU serves one client of a socket at a time. Further clients
// wait in a queue for their greeting until the client before them has left.
package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

const (
	// maxMessage bounds the size of one message.
	maxMessage = 4 << 20
	// redialEvery is the interval between two attempts to connect while the queue is full.
	redialEvery = 20 * time.Millisecond
)

// errClosed means that Close has closed the connection.
var errClosed = errors.New("the connection was closed")

// Error means that QEMU has refused a command.
type Error struct {
	Command string `json:"-"`
	Class   string `json:"class"`
	Desc    string `json:"desc"`
}

func (e *Error) Error() string { return fmt.Sprintf("QEMU refused %s: %s", e.Command, e.Desc) }

// Event is an asynchronous message from QEMU.
type Event struct {
	Name string
	Data json.RawMessage
}

// Client is one connection. Its methods are safe for concurrent use.
type Client struct {
	conn    net.Conn
	onEvent func(Event)
	greeted chan struct{}
	done    chan struct{} // closed with the connection
	writing sync.Mutex

	mu      sync.Mutex
	cause   error // why the connection was closed
	lastID  uint64
	waiting map[uint64]chan message
}

// message is a greeting, an answer or an event from QEMU.
type message struct {
	Greeting *struct{}       `json:"QMP"`
	ID       uint64          `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
	Event    string          `json:"event"`
	Data     json.RawMessage `json:"data"`
}

// Dial connects, waits for the greeting and enables commands, all before ctx ends. It passes
// events to onEvent one by one and in order. onEvent may be nil, and must not call the client.
func Dial(ctx context.Context, path string, onEvent func(Event)) (*Client, error) {
	conn, err := dialSocket(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connecting to QEMU: %w", err)
	}
	return NewClient(ctx, conn, onEvent)
}

// NewClient is Dial for an existing connection. It closes the connection if it fails.
func NewClient(ctx context.Context, conn net.Conn, onEvent func(Event)) (*Client, error) {
	c := &Client{
		conn: conn, onEvent: onEvent, waiting: map[uint64]chan message{},
		greeted: make(chan struct{}), done: make(chan struct{}),
	}
	go c.readMessages()
	if err := c.enableCommands(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialSocket connects to the socket. It retries while the queue is full, since the kernel
// does not report when there is room.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) {
			return conn, err
		}
		pause, cancel := context.WithTimeout(ctx, redialEvery)
		<-pause.Done()
		cancel()
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: too many clients are waiting: %w", path, ctx.Err())
		}
	}
}

func (c *Client) enableCommands(ctx context.Context) error {
	select {
	case <-c.greeted:
	case <-c.done:
		return fmt.Errorf("waiting for QEMU's greeting: %w", c.Err())
	case <-ctx.Done():
		return fmt.Errorf("waiting for QEMU's greeting: %w", ctx.Err())
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// Done returns a channel that is closed when the connection is closed; Err says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection was closed, nil while it is open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cause
}

// Close ends the connection.
func (c *Client) Close() { c.closeWith(errClosed) }

func (c *Client) closeWith(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	close(c.done)
	_ = c.conn.Close()
}

// Execute runs a command and decodes its answer into result, which may be nil. If ctx ends
// first, the late answer is dropped, and the connection stays usable.
func (c *Client) Execute(ctx context.Context, command string, arguments, result any) error {
	id, answer := c.registerCommand()
	defer c.unregisterCommand(id)
	if err := c.writeCommand(ctx, id, command, arguments); err != nil {
		return fmt.Errorf("sending %s to QEMU: %w", command, err)
	}
	select {
	case m := <-answer:
		return m.decodeInto(command, result)
	case <-c.done:
		return fmt.Errorf("waiting for QEMU's answer to %s: %w", command, c.Err())
	case <-ctx.Done():
		return fmt.Errorf("waiting for QEMU's answer to %s: %w", command, ctx.Err())
	}
}

func (m message) decodeInto(command string, result any) error {
	if m.Error != nil {
		m.Error.Command = command
		return m.Error
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(m.Return, result); err != nil {
		return fmt.Errorf("decoding QEMU's answer to %s: %w", command, err)
	}
	return nil
}

func (c *Client) registerCommand() (uint64, chan message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastID++
	answer := make(chan message, 1)
	c.waiting[c.lastID] = answer
	return c.lastID, answer
}

func (c *Client) unregisterCommand(id uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// writeCommand writes one command. It closes the connection after a partial write, since the rest
// of that command would be missing before the next one.
func (c *Client) writeCommand(ctx context.Context, id uint64, command string, arguments any) error {
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, arguments, id})
	if err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	_ = c.conn.SetWriteDeadline(time.Time{})
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = c.conn.SetWriteDeadline(time.Unix(1, 0))
		close(interrupted)
	})
	n, err := c.conn.Write(append(line, '\n'))
	if !stop() {
		<-interrupted // so that the deadline does not interrupt the next command
	}
	wasInterrupted := errors.Is(err, os.ErrDeadlineExceeded)
	if wasInterrupted {
		err = ctx.Err()
	}
	if err != nil && (n > 0 || !wasInterrupted) {
		c.closeWith(err)
	}
	return err
}

// readMessages handles messages from QEMU until the connection is closed.
func (c *Client) readMessages() {
	lines := bufio.NewScanner(c.conn)
	lines.Buffer(nil, maxMessage)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			c.closeWith(fmt.Errorf("QEMU sent something that is not QMP: %w", err))
			return
		}
		c.handleMessage(m)
	}
	err := lines.Err()
	if err == nil {
		err = errors.New("QEMU closed the connection")
	}
	c.closeWith(err)
}

func (c *Client) handleMessage(m message) {
	switch {
	case m.Greeting != nil:
		c.handleGreeting()
	case m.Event != "":
		if c.onEvent != nil {
			c.onEvent(Event{m.Event, m.Data})
		}
	default:
		c.deliverAnswer(m)
	}
}

// handleGreeting handles the first greeting, and ignores others.
func (c *Client) handleGreeting() {
	select {
	case <-c.greeted:
	default:
		close(c.greeted)
	}
}

func (c *Client) deliverAnswer(m message) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer, waits := c.waiting[m.ID]; waits {
		delete(c.waiting, m.ID)
		answer <- m
	}
}
