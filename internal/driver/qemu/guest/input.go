// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/agent"
)

const (
	// maxInputs bounds the input of commands that is kept for all guests of a host, in bytes,
	// and maxInputsOfNamespace that for the guests of one namespace.
	maxInputs, maxInputsOfNamespace = 64 << 20, 16 << 20
	// inputWithin is how long a command's input may take to end.
	inputWithin = 5 * time.Minute
)

// inputs counts the bytes of input that are kept, by namespace. The guest agent takes all
// input of a command at once, so input is kept until it has ended.
type inputs struct {
	mu     sync.Mutex
	total  int
	counts map[string]int
}

// add counts n bytes more for a namespace, or fails if those were too many.
func (i *inputs) add(namespace string, n int) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.counts[namespace]+n > maxInputsOfNamespace:
		return driver.Errorf(driver.ErrRetry, "stdin: the input of commands in namespace %s that waits for its end has %d MiB, which is the most: try again when some of them have ended", namespace, maxInputsOfNamespace>>20)
	case i.total+n > maxInputs:
		return driver.Errorf(driver.ErrRetry, "stdin: the input of commands that waits for its end has %d MiB on this host, which is the most: try again when some of them have ended", maxInputs>>20)
	}
	i.count(namespace, n)
	return nil
}

// count changes the counts by n bytes, and keeps none of 0. The caller has the lock.
func (i *inputs) count(namespace string, n int) {
	if i.counts == nil {
		i.counts = map[string]int{}
	}
	i.total += n
	if i.counts[namespace] += n; i.counts[namespace] == 0 {
		delete(i.counts, namespace)
	}
}

// input is the input of one command.
type input struct {
	from      io.Reader
	namespace string
	kept      *inputs
	// count is the number of bytes kept. isReleased is set once nobody reads the input any more.
	// The lock of kept guards both.
	count      int
	isReleased bool
}

var errReleased = errors.New("the command has ended")

// Read implements io.Reader, and counts what it returns.
func (i *input) Read(p []byte) (int, error) {
	n, err := i.from.Read(p)
	if countErr := i.countRead(n); countErr != nil {
		return 0, countErr
	}
	return n, err
}

func (i *input) countRead(n int) error {
	if err := i.kept.add(i.namespace, n); err != nil {
		return err
	}
	i.kept.mu.Lock()
	defer i.kept.mu.Unlock()
	if i.isReleased {
		i.kept.count(i.namespace, -n)
		return errReleased
	}
	i.count += n
	return nil
}

// release counts what was read as kept no longer.
func (i *input) release() {
	i.kept.mu.Lock()
	defer i.kept.mu.Unlock()
	i.kept.count(i.namespace, -i.count)
	i.count, i.isReleased = 0, true
}

// readAll reads the input until it ends. If ctx or the time for it ends first, a goroutine
// waits on until the caller closes the input.
func (i *input) readAll(ctx context.Context, c clock.Clock) ([]byte, error) {
	var content []byte
	read := make(chan error, 1)
	go func() {
		var err error
		content, err = io.ReadAll(io.LimitReader(i, agent.MaxInput+1))
		read <- err
	}()
	timer := c.NewTimer(inputWithin)
	defer timer.Stop()
	select {
	case err := <-read:
		if err != nil {
			return nil, fmt.Errorf("reading the input of the command: %w", err)
		}
		return content, nil
	case <-timer.C():
		return nil, driver.Errorf(driver.ErrInvalid, "stdin: the input has not ended within %s: the guest agent starts a command only then, so pass a file, or use ssh or the console", inputWithin)
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for the end of the command's input: %w", context.Cause(ctx))
	}
}
