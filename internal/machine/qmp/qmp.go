// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package qmp is a client of the QEMU Machine Protocol on a Unix socket.
//
// Start with Dial. QEMU serves one client of a socket at a time; further ones
// are queued and get their greeting when the client before them is gone.
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
	// maxMessage bounds the memory that one message may take.
	maxMessage = 4 << 20
	// redialEvery is the interval between two attempts to connect while the queue is full.
	redialEvery = 20 * time.Millisecond
)

// errClosed is the cause when this side closed the connection.
var errClosed = errors.New("the connection was closed")

// Error is QEMU's refusal of a command.
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
	over    chan struct{}
	writing sync.Mutex

	mu      sync.Mutex
	cause   error
	lastID  uint64
	waiting map[uint64]chan message
}

// message is anything that QEMU sends.
type message struct {
	Greeting *struct{}       `json:"QMP"`
	ID       uint64          `json:"id"`
	Return   json.RawMessage `json:"return"`
	Error    *Error          `json:"error"`
	Event    string          `json:"event"`
	Data     json.RawMessage `json:"data"`
}

// Dial connects, waits for the greeting and enables commands, all before ctx ends. Events
// are passed to onEvent one by one and in order; it must not wait for the client, and may
// be nil.
func Dial(ctx context.Context, path string, onEvent func(Event)) (*Client, error) {
	conn, err := dialSocket(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connecting to QEMU: %w", err)
	}
	return NewClient(ctx, conn, onEvent)
}

// NewClient is Dial with a connection that was made before, which it closes if it fails.
func NewClient(ctx context.Context, conn net.Conn, onEvent func(Event)) (*Client, error) {
	c := &Client{
		conn: conn, onEvent: onEvent, waiting: map[uint64]chan message{},
		greeted: make(chan struct{}), over: make(chan struct{}),
	}
	go c.readMessages()
	if err := c.enableCommands(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

// dialSocket connects to the socket. A full queue is not an error yet: clients leave it
// soon, and the kernel does not report when.
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
	case <-c.over:
		return fmt.Errorf("waiting for QEMU's greeting: %w", c.Err())
	case <-ctx.Done():
		return fmt.Errorf("waiting for QEMU's greeting: %w", ctx.Err())
	}
	return c.Execute(ctx, "qmp_capabilities", nil, nil)
}

// Done returns a channel that is closed when the connection is over; Err says why.
func (c *Client) Done() <-chan struct{} { return c.over }

// Err returns why the connection is over, or nil.
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
	close(c.over)
	_ = c.conn.Close()
}

// Execute runs a command and stores its answer in result, which may be nil. An answer
// that comes after ctx has ended is dropped, and the connection stays usable.
func (c *Client) Execute(ctx context.Context, command string, arguments, result any) error {
	id, answer := c.registerCommand()
	defer c.unregisterCommand(id)
	if err := c.writeCommand(ctx, id, command, arguments); err != nil {
		return fmt.Errorf("sending %s to QEMU: %w", command, err)
	}
	select {
	case m := <-answer:
		return m.decodeInto(command, result)
	case <-c.over:
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
		return fmt.Errorf("QEMU's answer to %s: %w", command, err)
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

// writeCommand writes one command. A command that is interrupted in the middle would corrupt all
// that follow, so that ends the connection.
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
		<-interrupted // so that it does not interrupt the next command
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

// readMessages handles what QEMU sends until the connection is over.
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
		err = errors.New("QEMU hung up")
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

// handleGreeting handles the first greeting; a connection has no other.
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
