// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/machine/proc"
)

const (
	// consoleEvery is the interval between two reads of the log. A person who types does not
	// notice it.
	consoleEvery = 20 * time.Millisecond
	// consoleTail is how much of the earlier output a reader gets.
	consoleTail = 4 << 10
)

// Console is an attached console. It reads from the log, so that many can, in this
// process and in others. It writes to the socket, which QEMU gives to one client at a
// time.
type Console struct {
	machine Machine

	ctx context.Context // ends with the console
	end context.CancelCauseFunc
	log growingLog // Read's own

	mu     sync.Mutex
	unlock func() // gives up the right to write
	line   net.Conn

	hangup atomic.Bool // QEMU has closed the line
}

// OpenConsole attaches to the console of a machine that runs. It ends with ctx.
func (m Machine) OpenConsole(ctx context.Context) (*Console, error) {
	log, info, err := atomicfile.Open(m.File(SerialLogFile))
	if err != nil {
		return nil, errorf(ErrNoConsole, "the console's log: %w", err)
	}
	ctx, end := context.WithCancelCause(ctx)
	c := &Console{machine: m, ctx: ctx, end: end}
	c.log = growingLog{c.isRunning, log, max(0, info.Size()-consoleTail)}
	context.AfterFunc(ctx, c.releaseAll)
	return c, nil
}

// Read waits for what the guest prints.
func (c *Console) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if n, err := c.log.read(p); n > 0 || err != nil {
			return n, c.endCause(err)
		}
		if !proc.Pause(c.ctx, consoleEvery) {
			return 0, context.Cause(c.ctx)
		}
	}
	return 0, nil
}

// isRunning reports whether the machine runs, and has done so since the line was opened. After
// a fast restart only the line shows that the QEMU at its other end is gone.
func (c *Console) isRunning() (bool, error) {
	if c.hangup.Load() {
		return false, nil
	}
	return c.machine.IsRunning()
}

// endCause replaces an error that the console's end caused by its cause.
func (c *Console) endCause(err error) error {
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return err
}

// Write sends what was typed to the guest. It waits for a guest that does not read. What is
// typed after QEMU has closed the line is lost; Read returns io.EOF then.
func (c *Console) Write(p []byte) (int, error) {
	line, err := c.openLine()
	if err != nil {
		return 0, err
	}
	n, err := line.Write(p)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		return len(p), nil
	}
	return n, c.endCause(err)
}

// openLine returns the connection to the guest, which belongs to this console from then on.
func (c *Console) openLine() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	if c.line != nil {
		return c.line, nil
	}
	unlock, err := c.claimWriter()
	if err != nil {
		return nil, err
	}
	line, err := c.dialLine()
	if err != nil {
		unlock()
		return nil, err
	}
	// What comes over the connection is in the log too, but it must be read, or else QEMU
	// would block the guest.
	go func() {
		_, _ = io.Copy(io.Discard, line)
		c.hangup.Store(true)
	}()
	c.unlock, c.line = unlock, line
	return line, nil
}

// claimWriter takes the right to write. QEMU would make a second writer wait for the
// first one's end, with all that was typed meanwhile.
func (c *Console) claimWriter() (unlock func(), err error) {
	unlock, err = tryLock(c.machine.File(writerLock), os.O_CREATE)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrConsoleTaken
	}
	return unlock, err
}

func (c *Console) dialLine() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, CommandWithin)
	defer cancel()
	line, err := c.machine.DialSerial(ctx)
	if err != nil {
		return nil, fmt.Errorf("the console: %w", err)
	}
	return line, nil
}

// Close ends the console.
func (c *Console) Close() error {
	c.end(os.ErrClosed)
	c.releaseAll()
	return nil
}

// releaseAll releases everything, once the console's context has ended.
func (c *Console) releaseAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.log.file.Close()
	if c.line != nil {
		_ = c.line.Close()
		c.unlock()
		c.line, c.unlock = nil, nil
	}
}
