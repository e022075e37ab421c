// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"io"
	"math"
	"sync"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
)

// output is where a verb prints. It remembers that something could not be printed, since verbs do not
// look.
type output struct {
	to io.Writer

	mu  sync.Mutex
	err error
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	n, err := o.to.Write(p)
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.err = fmt.Errorf("the output is not complete: %w", err)
	}
	return n, err
}

// failure returns why the output is not complete, nil if it is.
func (o *output) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// Fd implements streams.File. No descriptor has the number of an output that is no file.
func (o *output) Fd() uintptr {
	if f, ok := o.to.(streams.File); ok {
		return f.Fd()
	}
	return math.MaxInt32
}

// waitUnread waits until the reader of a pipe has left, which its writer learns otherwise only with the
// next write. It never returns for what has no reader.
func waitUnread(fd int) {
	for {
		polled := []unix.PollFd{{Fd: int32(fd)}} //nolint:gosec // a descriptor
		if _, err := unix.Poll(polled, -1); err == nil && polled[0].Revents&unix.POLLERR != 0 {
			return
		} else if err == nil {
			select {} // it is closed, or a terminal that has hung up
		}
	}
}
