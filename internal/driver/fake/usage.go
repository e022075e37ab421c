// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// memoryDivisor is the divisor of a server's memory that gives its simulated use.
const memoryDivisor = 4

// meter computes the CPU time that servers would have used. Load may be edited at
// any time, so the counters accumulate from one sample to the next.
type meter struct {
	mu   sync.Mutex
	last map[types.UID]reading
}

type reading struct {
	run string
	at  time.Time
	cpu time.Duration
}

func newMeter() *meter { return &meter{last: map[types.UID]reading{}} }

// sampleUsage measures a server; ok is false if it is not on.
func (m *meter) sampleUsage(r Record, now time.Time) (u driver.Usage, ok bool) {
	if !r.isOn() || r.State == driver.StateRestarting {
		m.forgetServer(r.UID)
		return driver.Usage{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	last, known := m.last[r.UID]
	if !known || last.run != r.Run {
		last = reading{run: r.Run, at: r.StartedAt}
	}
	if r.State != driver.StatePaused && now.After(last.at) {
		last.cpu += time.Duration(float64(now.Sub(last.at)) * r.Load * float64(r.CPUMilli) / 1000)
	}
	last.at = now
	m.last[r.UID] = last
	return driver.Usage{UID: r.UID, Run: r.Run, CPU: last.cpu, MemoryBytes: r.MemoryBytes / memoryDivisor, At: now}, true
}

func (m *meter) forgetServer(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.last, uid)
}
