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

// Output is the output of a program. It remembers the first failed write, so that the program can exit with an error
// although its verbs ignore errors of printing.
type Output struct {
	writer io.Writer
	once   sync.Once
	failed chan struct{} // closed once err is set
	err    error
}

// NewOutput returns an Output that writes to raw, or raw itself if it is an Output.
func NewOutput(raw io.Writer) *Output {
	if out, ok := raw.(*Output); ok {
		return out
	}
	return &Output{writer: raw, failed: make(chan struct{})}
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	n, err := o.writer.Write(p)
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

// Err returns the error of the first failed write, or nil. It is EPIPE if the reader of a pipe has closed the pipe.
func (o *Output) Err() error {
	select {
	case <-o.failed:
		return o.err
	default:
		return nil
	}
}

// UntilFailed returns a context that also ends once a write has failed.
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

// UntilReaderCloses returns a context like UntilFailed that also ends once the reader of a pipe has closed the pipe. A
// verb that has nothing to write would not notice that.
func (o *Output) UntilReaderCloses(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := o.UntilFailed(ctx)
	if file := File(o); file != nil {
		go o.watchReader(ctx, int32(file.Fd())) //nolint:gosec // a descriptor
	}
	return ctx, cancel
}

// pollEvery is how often watchReader checks whether its context has ended.
const pollEvery = time.Second

func (o *Output) watchReader(ctx context.Context, fd int32) {
	for ctx.Err() == nil {
		all := []unix.PollFd{{Fd: fd}} // poll reports errors and hang-ups without being asked
		n, err := unix.Poll(all, int(pollEvery.Milliseconds()))
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // the next write will fail instead
			return
		case n > 0:
			o.recordFailure(syscall.EPIPE)
			return
		}
	}
}

// File returns the file to which an output writes, or nil if it does not write to a file.
func File(out io.Writer) *os.File {
	switch out := out.(type) {
	case *os.File:
		return out
	case textWriter:
		return File(out.raw)
	case *Output:
		return File(out.writer)
	}
	return nil
}
