// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/terminal"
)

// input is the connection to the standard input of a container during one run. It outlasts the console that has opened
// it, since the engine ends the input with the connection.
type input struct {
	turn chan struct{} // a semaphore: full while a console may write

	writing  sync.Mutex // held by each write
	conn     *client.HijackedResponse
	last     lastByte
	hasEnded bool
}

// inputs has the inputs by the container's ID and the start of its run. All drivers in a process share it, since container
// IDs are unique.
var inputs driver.SyncMap[string, *input]

// errInputEnded means that a caller has ended the input.
var errInputEnded = driver.Errorf(driver.ErrUnsupported, "the input of the command has ended")

// openInput makes this console the writer of the container's input, until the console ends.
func (c *console) openInput() (*input, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.ctx.Err() != nil:
		return nil, context.Cause(c.ctx)
	case c.input != nil:
		return c.input, nil
	case !c.target.Config.OpenStdin:
		return nil, driver.Errorf(driver.ErrUnsupported, "the command lacks an input: set spec.stdin and restart the VM, or run another command beside it, as by exec -it")
	}
	key := c.target.ID + c.target.State.StartedAt
	in, _ := inputs.LoadOrStore(key, &input{turn: make(chan struct{}, 1), last: '\n'})
	select {
	case in.turn <- struct{}{}:
	default:
		return nil, driver.ErrConsoleTaken
	}
	if in.conn == nil {
		// With the output, the connection ends with the container.
		conn, err := c.access.attachTo(c.ctx, c.target, client.ContainerAttachOptions{Stream: true, Stdin: true, Stdout: true, DetachKeys: noDetachKeys})
		if err != nil {
			<-in.turn
			return nil, err
		}
		in.conn = &conn
		go func() {
			_, _ = io.Copy(io.Discard, conn.Reader)
			inputs.Delete(key)
			conn.Close()
		}()
	}
	c.input = in
	return in, nil
}

// Write sends input to the main process. It blocks while the process does not read.
func (c *console) Write(p []byte) (int, error) {
	in, err := c.openInput()
	if err != nil {
		return 0, err
	}
	n, err := in.write(p)
	return n, c.explainWrite(err)
}

// explainWrite returns why input was not written.
func (c *console) explainWrite(err error) error {
	switch {
	case err == nil, errors.Is(err, errInputEnded):
		return err
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	}
	return driver.Errorf(driver.ErrRetry, "writing to the console of container %s: %w", engine.ShortID(c.target.ID), err)
}

func (i *input) write(p []byte) (int, error) {
	i.writing.Lock()
	defer i.writing.Unlock()
	if i.hasEnded {
		return 0, errInputEnded
	}
	n, err := i.conn.Conn.Write(p)
	_, _ = i.last.Write(p[:n])
	return n, err
}

// CloseWrite implements driver.InputConsole. To a terminal it sends Ctrl-D.
func (c *console) CloseWrite() error {
	if !c.target.Config.StdinOnce && !c.target.hasTerminal() {
		return nil
	}
	in, err := c.openInput()
	if errors.Is(err, driver.ErrUnsupported) { // there is no input
		return nil
	}
	if err == nil {
		err = c.explainWrite(in.end(c.target.hasTerminal()))
	}
	return err
}

func (i *input) end(isTerminal bool) error {
	i.writing.Lock()
	defer i.writing.Unlock()
	if !isTerminal {
		i.hasEnded = true
		return i.conn.CloseWrite()
	}
	_, err := i.conn.Conn.Write(i.last.endOfInput())
	i.last = '\n'
	return err
}

// release lets another console write. It interrupts a write, which loses what the engine has not taken.
func (i *input) release() {
	_ = i.conn.Conn.SetWriteDeadline(time.Unix(1, 0))
	i.writing.Lock()
	_ = i.conn.Conn.SetWriteDeadline(time.Time{})
	i.writing.Unlock()
	<-i.turn
}

// Resize implements driver.InputConsole. It ignores errors: the terminal then keeps its size.
func (c *console) Resize(size terminal.Size) {
	if !c.target.hasTerminal() || size.Width == 0 || size.Height == 0 {
		return
	}
	ctx, cancel := c.access.withTimeout(c.ctx)
	defer cancel()
	_ = c.access.options.Engine.Read(ctx, "resize a terminal", func(ctx context.Context, e *client.Client) error {
		_, err := e.ContainerResize(ctx, c.target.ID, client.ContainerResizeOptions{Height: uint(size.Height), Width: uint(size.Width)})
		return err
	})
}
