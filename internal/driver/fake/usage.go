// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// memoryDivisor is which part of its memory a server seems to use: one fourth.
const memoryDivisor = 4

// meter computes the CPU time that servers would have used. It adds up the time between
// samples, since Record.Load may be edited at any time.
type meter struct {
	last driver.SyncMap[types.UID, reading]
}

type reading struct {
	run string
	at  time.Time
	cpu time.Duration
}

// sampleUsage computes the usage of a server; ok is false if the server is not on.
func (m *meter) sampleUsage(r Record, now time.Time) (u driver.Usage, ok bool) {
	isOn := r.isOn() && r.State != driver.StateRestarting
	m.last.Update(r.UID, func(last reading, known bool) (reading, bool) {
		if !known || last.run != r.Run {
			last = reading{run: r.Run, at: r.StartedAt}
		}
		if r.State != driver.StatePaused && now.After(last.at) {
			last.cpu += time.Duration(float64(now.Sub(last.at)) * r.Load * float64(r.CPUMilli) / 1000)
		}
		last.at = now
		u = driver.Usage{UID: r.UID, Run: r.Run, CPU: last.cpu, MemoryBytes: r.MemoryBytes / memoryDivisor, At: now}
		return last, isOn
	})
	return u, isOn
}
