// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Output is the output of a program. It remembers the first write that failed, so that the program can exit with
// a failure though its verbs print without a look at errors.
type Output struct {
	to     io.Writer
	once   sync.Once
	failed chan struct{} // closed once err is set
	err    error
}

// NewOutput returns an Output that writes to another writer. A writer that is an Output is returned itself.
func NewOutput(raw io.Writer) *Output {
	if out, ok := raw.(*Output); ok {
		return out
	}
	return &Output{to: raw, failed: make(chan struct{})}
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil {
		o.recordFailure(err)
	}
	return n, err
}

func (o *Output) recordFailure(err error) {
	o.once.Do(func() {
		o.err = err
		close(o.failed)
	})
}

// Err returns the error of the first write that failed. It is EPIPE if the reader of a pipe has closed it.
func (o *Output) Err() error {
	select {
	case <-o.failed:
		return o.err
	default:
		return nil
	}
}

// UntilFailed returns a context that ends once a write has failed.
func (o *Output) UntilFailed(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-o.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// WhileRead returns a context that also ends once the reader of a pipe has closed it. A verb that has nothing
// to write would not notice otherwise.
func (o *Output) WhileRead(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := o.UntilFailed(ctx)
	if file := File(o); file != nil {
		go o.watchReader(ctx, int32(file.Fd())) //nolint:gosec // a descriptor
	}
	return ctx, cancel
}

// pollEvery is how often watchReader looks whether it is still needed.
const pollEvery = time.Second

func (o *Output) watchReader(ctx context.Context, fd int32) {
	for ctx.Err() == nil {
		all := []unix.PollFd{{Fd: fd}} // errors and hang-ups are reported in any case
		n, err := unix.Poll(all, int(pollEvery.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // then the next write tells
			return
		case n > 0:
			o.recordFailure(syscall.EPIPE)
			return
		}
	}
}

// File returns the file behind an output, or nil if there is none: to find out whether it is a terminal.
func File(out io.Writer) *os.File {
	switch out := out.(type) {
	case *os.File:
		return out
	case writer:
		return File(out.raw)
	case *Output:
		return File(out.to)
	}
	return nil
}
