// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guests reaches the guests of machines through their supervisors, for drivers whose servers
// are machines.
//
// Start with Guests, which has the parts that all these drivers share.
package guests

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/machine/agent"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/terminal"
)

// Guests reaches the guests of a driver.
type Guests struct {
	// Reach returns a client of a running server's supervisor, for requests of users.
	Reach func(ctx context.Context, uid types.UID) (*control.Client, error)
	// Explain replaces an error whose meaning depends on where the machine runs, such as in a pod. It
	// returns nil for other errors. Explain may be nil.
	Explain func(error) error
}

// kinds maps failures of a guest to errors of package driver. Other failures have none. For example, ErrEndUnknown must
// not become driver.ErrRetry, since the command may have been started.
var kinds = map[failure.Kind]error{
	failure.Retry: driver.ErrRetry, failure.Invalid: driver.ErrInvalid, failure.Unsupported: driver.ErrUnsupported,
	failure.Busy: driver.ErrBusy, failure.Taken: driver.ErrConsoleTaken, failure.NotFound: driver.ErrCommandNotFound, failure.NotExecutable: driver.ErrCommandNotExecutable,
}

// classifyError wraps an error of a guest in the matching error of package driver.
func (g Guests) classifyError(err error) error {
	if g.Explain != nil {
		if explained := g.Explain(err); explained != nil {
			return explained
		}
	}
	if kind := kinds[failure.KindOf(err)]; kind != nil {
		return driver.Errorf(kind, "%w", err)
	}
	return err
}

// Console implements driver.Consoler.
func (g Guests) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	attach := func(writable bool) (io.ReadWriteCloser, error) {
		c, err := g.Reach(ctx, uid)
		if err != nil {
			return nil, err
		}
		s, err := c.Console(ctx, writable)
		return s, g.classifyError(err)
	}
	output, err := attach(false)
	if err != nil {
		return nil, err
	}
	return &console{ReadWriteCloser: output, guests: g, attach: attach}, nil
}

// console is an attached console. It opens a second stream for the input once the user types.
type console struct {
	io.ReadWriteCloser

	guests Guests
	attach func(writable bool) (io.ReadWriteCloser, error)

	mu       sync.Mutex
	input    *inputStream
	isClosed bool
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	to, err := c.openInput()
	if err != nil {
		return 0, err
	}
	n, err := to.Write(p)
	return n, c.guests.classifyError(err)
}

func (c *console) openInput() (*inputStream, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, net.ErrClosed
	}
	if c.input == nil {
		stream, err := c.attach(true)
		if err != nil {
			return nil, err
		}
		c.input = newInputStream(stream)
	}
	return c.input, nil
}

// Close implements io.Closer.
func (c *console) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil
	}
	c.isClosed = true
	err := c.ReadWriteCloser.Close()
	if c.input != nil {
		err = errors.Join(err, c.input.Close())
	}
	return err
}

// releaseTimeout is how long Close waits for the machine to release the console's input.
const releaseTimeout = 2 * time.Second

// inputStream is the stream for the input of one caller. Only one caller at a time may have one.
type inputStream struct {
	io.ReadWriteCloser

	ended chan struct{}
}

func newInputStream(stream io.ReadWriteCloser) *inputStream {
	s := &inputStream{stream, make(chan struct{})}
	go func() {
		defer close(s.ended)
		_, _ = io.Copy(io.Discard, stream) // the guest's output, which the other stream has too
	}()
	return s
}

// Close implements io.Closer. After it has returned, another caller may type, unless the guest does not
// read the input.
func (s *inputStream) Close() error {
	if half, ok := s.ReadWriteCloser.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		select {
		case <-s.ended:
		case <-time.After(releaseTimeout):
		}
	}
	return s.ReadWriteCloser.Close()
}

// Exec implements driver.Executor. The guest's agent runs the command.
func (g Guests) Exec(ctx context.Context, uid types.UID, command terminal.Command) (exitCode int, err error) {
	if err := (agent.Command{Args: command.Args}).Check(); err != nil {
		return 0, driver.Errorf(driver.ErrInvalid, "%w", err)
	}
	c, err := g.Reach(ctx, uid)
	if err != nil {
		return 0, err
	}
	for _, to := range []*io.Writer{&command.Stdout, &command.Stderr} {
		if *to == nil {
			*to = io.Discard
		}
	}
	code, err := c.Exec(ctx, command)
	if errors.Is(err, failure.ErrOutputCut) {
		err = fmt.Errorf("%w; the exit code is %d", err, code)
	}
	if failure.IsCommand(err) {
		err = fmt.Errorf("%.80q: %w", command.Args[0], err)
	}
	return code, g.classifyError(err)
}

// Interfaces implements driver.InterfaceLister. The guest's agent lists the interfaces.
func (g Guests) Interfaces(ctx context.Context, uid types.UID) ([]report.Interface, error) {
	c, err := g.Reach(ctx, uid)
	if err != nil {
		return nil, err
	}
	reported, err := c.Interfaces(ctx)
	if err != nil {
		return nil, g.classifyError(err)
	}
	return reported, nil
}

// NetworkStatistics implements driver.NetworkReporter. The machine's supervisor counts the packets.
func (g Guests) NetworkStatistics(ctx context.Context, uid types.UID) (report.NetworkStatistics, error) {
	c, err := g.Reach(ctx, uid)
	if err != nil {
		return report.NetworkStatistics{}, err
	}
	n, err := c.NetworkStatistics(ctx)
	if err != nil {
		return report.NetworkStatistics{}, g.classifyError(err)
	}
	return n, nil
}
