// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"errors"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
)

// TestWaits checks that the status says what a guest waits for.
func TestWaits(t *testing.T) {
	t.Parallel()
	s := New(Options{Clock: clock.RealClock{}, Log: logr.Discard()})
	f := follower{supervisor: s}
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
		if f.setWait(c.cause); s.progress.currentStatus().Waits != c.want {
			t.Errorf("after %v the guest waits for %q, want %q", c.cause, s.progress.currentStatus().Waits, c.want)
		}
	}
}
