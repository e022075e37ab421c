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
func (s *instance) rotateLog() error {
	if s.Phase == phaseStarting {
		return s.SetLogAside(machine.FailedLog)
	}
	return s.SetLogAside(machine.OldLog)
}

// cutLogs cuts a machine's logs that are too large.
func (d *Driver) cutLogs(h *instance) {
	for _, name := range machine.LogFiles {
		if err := h.CutLog(name, d.logs.size); err != nil {
			d.Log.V(1).Info("Log could not be kept while it was cut", "log", h.File(name), "cause", err.Error())
		}
	}
}
