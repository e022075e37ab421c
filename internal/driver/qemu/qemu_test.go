// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
)

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
