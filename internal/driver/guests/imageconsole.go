// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guests

import (
	"cmp"
	"context"
	"io"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/imageagent"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/terminal"
)

// ImageConsole is the console of a container image's machine. It shows the output of the image's command, and writes to
// the command's input by the agent in the guest.
type ImageConsole struct {
	io.ReadCloser // the output

	send             func(ctx context.Context, stdin io.Reader, sizes <-chan terminal.Size, stdout io.Writer) error
	hasStdin, hasTTY bool

	ctx    context.Context // ends with the console
	cancel context.CancelFunc

	mu    sync.Mutex
	input *input             // nil until the first Write
	sizes chan terminal.Size // nil until the first Resize; has the latest size
}

// input is a connection to the input of a command.
type input struct {
	*io.PipeWriter

	over chan struct{} // closed once the guest has taken the whole input, or the connection is lost
}

// NewImageConsole returns the console of a machine with an output. The flags are spec.stdin and spec.tty of its run.
func (g Guests) NewImageConsole(ctx context.Context, uid types.UID, output io.ReadCloser, hasStdin, hasTTY bool) *ImageConsole {
	c := &ImageConsole{ReadCloser: output, hasStdin: hasStdin, hasTTY: hasTTY}
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.send = func(ctx context.Context, stdin io.Reader, sizes <-chan terminal.Size, stdout io.Writer) error {
		_, err := g.Exec(ctx, uid, terminal.Command{Args: []string{imageagent.InputCommand}, Stdin: stdin, Resize: sizes, Stdout: stdout})
		return err
	}
	return c
}

// Write implements io.Writer. It blocks while the command does not read.
func (c *ImageConsole) Write(p []byte) (int, error) {
	if !c.hasStdin {
		return 0, driver.Errorf(driver.ErrUnsupported, "the command lacks an input: set spec.stdin and restart the VM, or run another command beside it, as by exec -it")
	}
	in, err := c.openInput()
	if err != nil {
		return 0, err
	}
	return in.Write(p)
}

// CloseWrite ends the input of the command.
func (c *ImageConsole) CloseWrite() error {
	if !c.hasStdin {
		return nil
	}
	in, err := c.openInput()
	if err != nil {
		return err
	}
	_ = in.Close()
	select {
	case <-in.over:
	case <-c.ctx.Done():
	}
	return nil
}

var errInputEnded = driver.Errorf(driver.ErrUnsupported, "%w", failure.ErrInputEnded)

// openInput returns once the command's input takes bytes from this console.
func (c *ImageConsole) openInput() (*input, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.input != nil {
		return c.input, nil
	}
	reader, writer := io.Pipe()
	in := &input{writer, make(chan struct{})}
	ready := make(chan struct{})
	var failed error
	go func() {
		defer close(in.over)
		failed = cmp.Or(c.send(c.ctx, reader, nil, readyWriter(sync.OnceFunc(func() { close(ready) }))), errInputEnded)
		_ = reader.CloseWithError(failed)
	}()
	select {
	case <-ready:
		c.input = in
		return in, nil
	case <-in.over:
		return nil, failed
	}
}

// readyWriter is a function that is called at each Write.
type readyWriter func()

// Write implements io.Writer.
func (w readyWriter) Write(p []byte) (int, error) {
	w()
	return len(p), nil
}

// sizesRetry is the pause between two tries to send sizes. The supervisor may be about to be replaced.
const sizesRetry = time.Second

// Resize sets the size of the command's terminal. It does not wait for that.
func (c *ImageConsole) Resize(size terminal.Size) {
	if !c.hasTTY {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sizes == nil {
		c.sizes = make(chan terminal.Size, 1)
		go func() {
			for c.ctx.Err() == nil {
				_ = c.send(c.ctx, nil, c.sizes, nil)
				proc.Pause(c.ctx, sizesRetry)
			}
		}()
	}
	select {
	case <-c.sizes:
	default:
	}
	c.sizes <- size
}

// Close implements io.Closer. The input of the command stays open, unless CloseWrite has ended it.
func (c *ImageConsole) Close() error {
	c.cancel()
	return c.ReadCloser.Close()
}
