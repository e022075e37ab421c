// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"os"
	"strings"
	"syscall"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"cloudnative.tw/drover/test/assert"
)

// TestFullOutput checks that a verb fails whose output is lost, though it looks at no error.
func TestFullOutput(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = full.Close() })
	var errs bytes.Buffer
	code := Main(t.Context(), []string{"kubectl-vm", "--version"}, genericiooptions.IOStreams{In: strings.NewReader(""), Out: full, ErrOut: &errs})
	if code != 1 || !strings.Contains(errs.String(), syscall.ENOSPC.Error()) {
		t.Errorf("it ended with %d, %q", code, errs.String())
	}
}

// TestUnreadOutput checks that a program learns of a reader that has left before it prints anything.
func TestUnreadOutput(t *testing.T) {
	t.Parallel()
	read, written, err := os.Pipe()
	assert.NoError(t, err)
	t.Cleanup(func() { _ = written.Close() })
	left := make(chan struct{})
	go func() {
		waitUnread(int(written.Fd()))
		close(left)
	}()
	select {
	case <-left:
		t.Error("the reader is there")
	default:
	}
	assert.NoError(t, read.Close())
	<-left
}
