// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/qmp"
	"cloudnative.tw/drover/test/assert"
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

// failingDisk is a QEMU whose disk fails before each answer.
type failingDisk struct {
	Process
	Network
	s *Supervisor
}

func (failingDisk) Usage() (proc.Usage, error)                 { return proc.Usage{}, nil }
func (failingDisk) Served() (control.Revision, []control.Port) { return control.Revision{}, nil }

func (q failingDisk) Execute(ctx context.Context, _ string, _, result any) error {
	q.s.onEvent(ctx, qmp.Event{Name: "BLOCK_IO_ERROR", Data: json.RawMessage(`{"node-name": "root", "operation": "write", "action": "stop", "reason": "Disk quota exceeded"}`)})
	return json.Unmarshal([]byte(`{"status": "io-error"}`), result)
}

// TestFaultInStatus checks that a status has the disk error that has paused the guest, also before the follower has seen it.
func TestFaultInStatus(t *testing.T) {
	t.Parallel()
	s := New(Options{Clock: clock.RealClock{}, Log: logr.Discard(), Network: failingDisk{}})
	qemu := failingDisk{s: s}
	s.process, s.monitor = qemu, machine.Monitor{Executor: qemu}
	close(s.attached)
	status, err := s.Status(t.Context())
	assert.NoError(t, err)
	assert.Equal(t, "run state", status.RunState, machine.StatusIOError)
	assert.Equal(t, "fault", status.Fault, control.Fault{Node: "root", Operation: "write", Reason: "Disk quota exceeded"})
}
