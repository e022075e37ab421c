// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guests reaches the guests of machines by their supervisors, for drivers whose servers are
// machines.
//
// Start with Guests, which has the parts that are the same for all of them.
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
	// Reach returns a client of the supervisor of a server that runs, for people.
	Reach func(ctx context.Context, uid types.UID) (*control.Client, error)
	// Explain returns what an error means where the machine is, nil for one that it does not know.
	Explain func(error) error
}

// kinds are the kinds of the contract for failures of a guest. Others lack a kind, as ErrEndUnknown: the command may
// have been started.
var kinds = map[failure.Kind]error{
	failure.Retry: driver.ErrRetry, failure.Invalid: driver.ErrInvalid, failure.Unsupported: driver.ErrUnsupported,
	failure.Taken: driver.ErrConsoleTaken, failure.NotFound: driver.ErrCommandNotFound, failure.NotExecutable: driver.ErrCommandNotExecutable,
}

// classifyError gives an error of a guest its kind in the contract.
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
	attach := func(types bool) (io.ReadWriteCloser, error) {
		c, err := g.Reach(ctx, uid)
		if err != nil {
			return nil, err
		}
		s, err := c.Console(ctx, types)
		return s, g.classifyError(err)
	}
	reads, err := attach(false)
	if err != nil {
		return nil, err
	}
	return &console{ReadWriteCloser: reads, guests: g, attach: attach}, nil
}

// console is an attached console, which has a second stream once its user has typed.
type console struct {
	io.ReadWriteCloser

	guests Guests
	attach func(types bool) (io.ReadWriteCloser, error)

	mu       sync.Mutex
	typist   *typist
	isClosed bool
}

// Write implements io.Writer.
func (c *console) Write(p []byte) (int, error) {
	to, err := c.openTypist()
	if err != nil {
		return 0, err
	}
	n, err := to.Write(p)
	return n, c.guests.classifyError(err)
}

func (c *console) openTypist() (*typist, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.isClosed {
		return nil, net.ErrClosed
	}
	if c.typist == nil {
		types, err := c.attach(true)
		if err != nil {
			return nil, err
		}
		c.typist = newTypist(types)
	}
	return c.typist, nil
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
	if c.typist != nil {
		err = errors.Join(err, c.typist.Close())
	}
	return err
}

// leaveWithin is how long a machine may take to let another caller type.
const leaveWithin = 2 * time.Second

// typist is a stream by which one caller types.
type typist struct {
	io.ReadWriteCloser

	ended chan struct{}
}

func newTypist(types io.ReadWriteCloser) *typist {
	t := &typist{types, make(chan struct{})}
	go func() {
		defer close(t.ended)
		_, _ = io.Copy(io.Discard, types) // what the guest prints comes here too
	}()
	return t
}

// Close implements io.Closer. Another caller may type once it returns, unless the guest does not read
// what was typed.
func (t *typist) Close() error {
	if half, ok := t.ReadWriteCloser.(interface{ CloseWrite() error }); ok && half.CloseWrite() == nil {
		select {
		case <-t.ended:
		case <-time.After(leaveWithin):
		}
	}
	return t.ReadWriteCloser.Close()
}

// Exec implements driver.Executor, by the guest's agent.
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

// Interfaces implements driver.InterfaceLister, by the guest's agent.
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

// NetworkStatistics implements driver.NetworkReporter, by the machine's supervisor.
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
