// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	guestconfig "cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/test/assert"
)

// TestEndingQEMU checks that a socket whose QEMU has closed it means that there is no QEMU to follow.
func TestEndingQEMU(t *testing.T) {
	t.Parallel()
	p := Place{Machine: machine.Machine{Path: t.TempDir()}}
	listener, err := p.Listen(machine.EventsSocket)
	assert.NoError(t, errors.Join(err, listener.Close()))
	assert.ErrorIs(t, "the dial", assert.ErrorOf(p.dialFile(t.Context(), machine.EventsSocket)), ErrNoQEMU)
}

// TestCutResult checks that a result is bounded while its guest runs, and keeps its beginning.
func TestCutResult(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "result"))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	for _, size := range []int{guestconfig.MaxResults, 3 * guestconfig.MaxResults} {
		written := append([]byte("first"), make([]byte, size-5)...)
		assert.NoError(t, errors.Join(os.WriteFile(f.Name(), written, 0o600), cutResult(f)))
		left, err := os.ReadFile(f.Name())
		if assert.NoError(t, err); !bytes.Equal(left, written[:guestconfig.MaxResults]) {
			t.Errorf("of %d bytes %d are left", size, len(left))
		}
	}
}

// TestWaits checks that the status says what a guest waits for.
func TestWaits(t *testing.T) {
	t.Parallel()
	s := New(Config{Clock: clock.RealClock{}, Log: logr.Discard()})
	f := follower{Supervisor: s}
	for _, c := range []struct {
		cause error
		want  control.Wait
	}{
		{machine.DiskFault{Reason: syscall.ENOSPC.Error()}.Explain(), control.WaitRoom},
		{machine.DiskFault{Reason: syscall.EIO.Error()}.Explain(), control.WaitDisk},
		{errors.New("QEMU does not answer"), control.WaitNone},
		{machine.DiskFault{}.Explain(), control.WaitDisk},
		{nil, control.WaitNone},
	} {
		if f.setWait(c.cause); s.progress.status().Waits != c.want {
			t.Errorf("after %v the guest waits for %q, want %q", c.cause, s.progress.status().Waits, c.want)
		}
	}
}
