// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"os"
	"testing"

	"cloudnative.tw/drover/test/assert"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine/proc"
)

// TestLife checks that a guest is booted, listed, stopped by its power button, booted
// again with its disk as it was, and removed without a trace.
func TestLife(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	first := boots(t, d, spec, "drover guest 1 A")
	listed, err := d.List(t.Context())
	assert.NoError(t, err)
	if len(listed) != 1 || listed[0].State != driver.StateRunning || listed[0].Run != first.Run {
		t.Errorf("listed: %+v", listed)
	}
	pid := d.InstanceOf(spec.UID).PID()
	if pid == 0 {
		t.Fatal("it has no process")
	}

	off := spec
	off.Power = driver.PowerOff
	stopped := reach(t, d, off, driver.StateStopped)
	if stopped.Exit == nil || stopped.Exit.Code != 0 || stopped.Exit.Reason != "Completed" {
		t.Errorf("it ended with %+v", stopped.Exit)
	}
	boots(t, d, spec, "drover guest 2 A")

	gone(t, d, spec)
	if _, err := os.Stat(proc.Path(pid, "cwd")); err == nil {
		t.Error("its process is still there")
	}
	for _, sub := range []string{instance.VMsDir, instance.RetainedDir, instance.NotificationsDir, instance.EndsDir, "locks", "tmp"} {
		left, err := os.ReadDir(d.StateDir.Path(sub))
		assert.NoError(t, err)
		if len(left) != 0 {
			t.Errorf("left behind in %s: %v", sub, left)
		}
	}
}

// TestStopThatIsOver checks that a restart goes on where the guest, or its QEMU too, ended
// while it was stopped: else the caller would get a server that is off, and take the restart
// for one that has failed.
func TestStopThatIsOver(t *testing.T) {
	t.Parallel()
	off := &driver.Exit{Reason: "Completed"}
	for name, c := range map[string]struct {
		inst *instance.Instance
		step step
		want bool
	}{
		"the guest shuts down":     {&instance.Instance{On: true}, stepStop, false},
		"the guest has ended":      {&instance.Instance{On: true, Exit: off}, stepStop, true},
		"QEMU has quit":            {&instance.Instance{Exit: off}, stepStop, true},
		"a start waits for images": {&instance.Instance{Exit: off}, stepStart, false},
	} {
		if got := hasEndedDuring(c.step, c.inst); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}
