// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"time"

	"cloudnative.tw/drover/internal/machine"
)

// logBound is how large a machine's logs get. QEMU writes them and knows no bound, so all
// attendants of the machine check them periodically: one of them may be halted. Nothing
// checks them while no controller runs; the next controller cuts what has grown.
type logBound struct {
	size  int64
	every time.Duration
}

var defaultLogBound = logBound{size: 1 << 20, every: 5 * time.Second}

// rotateLog renames the previous log before a run. A start that was interrupted has left
// its own.
func (inst *instance) rotateLog() error {
	if inst.Phase == phaseStarting {
		return inst.SetLogAside(machine.FailedLog)
	}
	return inst.SetLogAside(machine.OldLog)
}

// cutLogs cuts a machine's logs that are too large.
func (inst *instance) cutLogs() {
	for _, name := range machine.LogFiles {
		if err := inst.CutLog(name, inst.driver.logs.size); err != nil {
			inst.driver.Log.V(1).Info("Log could not be kept while it was cut", "log", inst.File(name), "cause", err.Error())
		}
	}
}
