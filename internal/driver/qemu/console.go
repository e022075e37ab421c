// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/machine/proc"
)

const (
	// consoleEvery is the interval between two looks at the log. A person who types does not
	// notice it.
	consoleEvery = 20 * time.Millisecond
	// consoleTail is how much of the earlier output a reader gets.
	consoleTail = 4 << 10
)

// console is an attached console. It reads from the log, so that many can, in this
// process and in others. It writes to the socket, which QEMU gives to one client at a
// time.
type console struct {
	instanceDir

	ctx context.Context // ends with the console
	end context.CancelCauseFunc
	log *os.File
	at  int64 // in the log; Read's own

	mu    sync.Mutex
	right *statedir.Lock // to write
	line  net.Conn
}

// Console implements driver.Consoler.
func (d *Driver) Console(ctx context.Context, uid types.UID) (io.ReadWriteCloser, error) {
	s, err := d.attachable(ctx, uid)
	if err != nil {
		return nil, err
	}
	log, err := os.Open(s.file(serialLogFile))
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "the console's log: %w", err)
	}
	info, err := log.Stat()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	ctx, end := context.WithCancelCause(ctx)
	c := &console{instanceDir: s.instanceDir, ctx: ctx, end: end, log: log, at: max(0, info.Size()-consoleTail)}
	context.AfterFunc(ctx, c.hangUp)
	return c, nil
}

// attachable returns a server that currently has a console.
func (d *Driver) attachable(ctx context.Context, uid types.UID) (server, error) {
	if err := enter(ctx); err != nil {
		return server{}, err
	}
	if err := checkUID(uid); err != nil {
		return server{}, err
	}
	if err := d.dir.Reach(); err != nil {
		return server{}, err
	}
	s, err := d.observe(ctx, d.home(uid))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && (s.ClusterID != d.ClusterID || s.Retained):
		return server{}, driver.Errorf(driver.ErrNotFound, "there is no server of UID %s", uid)
	case isBroken(err):
		return server{}, driver.Errorf(driver.ErrRetry, "%w", err)
	case err != nil:
		return server{}, driver.Errorf(driver.ErrUnavailable, "%w", err)
	case !s.alive():
		return server{}, driver.Errorf(driver.ErrRetry, "the server %s does not run, and has no console", uid)
	}
	return s, nil
}

// Read waits for what the guest prints.
func (c *console) Read(p []byte) (int, error) {
	for len(p) > 0 {
		if n, err := c.printed(p); n > 0 || err != nil {
			return n, err
		}
		if !proc.Pause(c.ctx, consoleEvery) {
			return 0, context.Cause(c.ctx)
		}
	}
	return 0, nil
}

// printed reads what is in the log. It checks first whether the server runs, so that it
// does not miss the last output.
func (c *console) printed(p []byte) (int, error) {
	on, err := c.running()
	if err != nil {
		return 0, err
	}
	n, err := c.log.ReadAt(p, c.at)
	c.at += int64(n)
	if n > 0 || !errors.Is(err, io.EOF) {
		return n, c.because(err)
	}
	info, err := c.log.Stat()
	if err != nil {
		return 0, c.because(err)
	}
	if info.Size() < c.at { // it was cut
		c.at = 0
		return 0, nil
	}
	if !on {
		return 0, io.EOF
	}
	return 0, nil
}

// because replaces an error that the console's end caused by its cause.
func (c *console) because(err error) error {
	switch {
	case c.ctx.Err() != nil:
		return context.Cause(c.ctx)
	case errors.Is(err, io.EOF):
		return nil
	}
	return err
}

// Write sends what was typed to the guest. It waits for a guest that does not read.
func (c *console) Write(p []byte) (int, error) {
	line, err := c.writer()
	if err != nil {
		return 0, err
	}
	n, err := line.Write(p)
	return n, c.because(err)
}

// writer returns the connection to the guest, which belongs to this console from then on.
func (c *console) writer() (net.Conn, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ctx.Err() != nil {
		return nil, context.Cause(c.ctx)
	}
	if c.line != nil {
		return c.line, nil
	}
	right, err := c.claimWriter()
	if err != nil {
		return nil, err
	}
	line, err := c.connect()
	if err != nil {
		right.Release()
		return nil, err
	}
	// What comes over the connection is in the log too, but it must be read, or else QEMU
	// would block the guest.
	go func() { _, _ = io.Copy(io.Discard, line) }()
	c.right, c.line = right, line
	return line, nil
}

// claimWriter takes the right to write. QEMU would make a second writer wait for the
// first one's end, with all that was typed meanwhile.
func (c *console) claimWriter() (*statedir.Lock, error) {
	right, err := statedir.TryLock(c.file(writerLock), syscall.LOCK_EX)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = driver.ErrConsoleTaken
	}
	return right, err
}

func (c *console) connect() (line net.Conn, err error) {
	ctx, cancel := context.WithTimeout(c.ctx, commandWithin)
	defer cancel()
	err = c.atSocket(serialSocket, func(path string) error {
		line, err = (&net.Dialer{}).DialContext(ctx, "unix", path)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("the console: %w", err)
	}
	return line, nil
}

// Close ends the console.
func (c *console) Close() error {
	c.end(os.ErrClosed)
	c.hangUp()
	return nil
}

// hangUp releases everything, once the console's context has ended.
func (c *console) hangUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.log.Close()
	if c.line != nil {
		_ = c.line.Close()
		c.right.Release()
		c.line, c.right = nil, nil
	}
}
