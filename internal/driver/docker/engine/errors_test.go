// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// TestExplainError checks how errors of Docker's client are classified: whether the
// connection is dropped, and whether the engine counts as unreachable. Package docker tests
// the same with an engine.
func TestExplainError(t *testing.T) {
	t.Parallel()
	e := &Client{address: "unix:///x"}
	for name, c := range map[string]struct {
		err         error
		lost        bool
		unavailable bool // after reading
	}{
		"refused connection":    {&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, true, true},
		"cut connection":        {io.ErrUnexpectedEOF, true, true},
		"engine shutting down":  {fmt.Errorf("%w: shutting down", errdefs.ErrUnavailable), true, true},
		"replaced engine":       {errors.New("client version 1.41 is too old. Minimum is 1.44"), true, true},
		"timeout":               {context.DeadlineExceeded, false, true},
		"cancelled by caller":   {context.Canceled, false, false},
		"timeout of connecting": {&net.OpError{Op: "dial", Err: context.DeadlineExceeded}, false, true},
		"not found":             {fmt.Errorf("%w: x", errdefs.ErrNotFound), false, false},
		"internal error":        {errors.New("Error response from daemon: x"), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, "IsConnectionLost", IsConnectionLost(c.err), c.lost)
			read := e.explainError("list containers", false, c.err)
			got := errors.Is(read, driver.ErrUnavailable)
			assert.True(t, got == c.unavailable && errors.Is(read, c.err), "reading: got %v, unavailable %v, want %v", read, got, c.unavailable)
			// After a timeout it is unknown whether the change was made.
			change := e.explainError("create container", true, c.err)
			got = errors.Is(change, driver.ErrUnavailable)
			assert.True(t, got == c.lost && driver.Ambiguous(change), "changing: got %v, unavailable %v, want %v, and an ambiguous error", change, got, c.lost)
		})
	}
	assert.Equal(t, "got the text, want it without the client's prefix",
		e.explainError("list containers", false, errors.New("Error response from daemon: x")).Error(), "list containers: x")
}
