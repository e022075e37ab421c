// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"fmt"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
)

// DefaultReserve is the minimum that is reserved of the host's memory, and ReservePart
// the divisor that gives the reserve of a larger host.
const (
	DefaultReserve = 512 << 20
	ReservePart    = 20
)

// DemandOf returns the memory that a server needs for a spec.
func DemandOf(s *Instance, spec driver.ServerSpec, accel string) memory.Demand {
	return memory.Demand{
		Guest: spec.MemoryBytes, Overhead: memory.OverheadOf(accel),
		RanBefore: !s.StartedAt.IsZero() && s.Settings.MemoryBytes == spec.MemoryBytes,
	}
}

// FindRoom returns what reservations check against: what is left of the host's memory
// besides the reserve, or of the control group that Drover and its machines are in.
// Machines of other clusters and released ones count like any other. A machine whose use
// cannot be read, as of another user, counts as if it used nothing yet.
func (h *Host) FindRoom() (memory.Room, error) {
	host, err := proc.ReadFigures("/proc/meminfo")
	if err != nil {
		return memory.Room{}, err
	}
	kept := h.ReservedOf(host["MemTotal"])
	have := memory.Room{Available: host["MemAvailable"] - kept, Reserve: kept, Where: fmt.Sprintf("on the host (besides %s that --qemu-reserve-memory keeps)", kit.FormatMegabytes(kept))}
	if group, free, err := h.FindGroupMemory(); err == nil && free < have.Available {
		have.Available, have.Reserve, have.Where = free, 0, "below the memory limit of "+group
	}
	have.Promised, err = h.PromisedMemory()
	return have, err
}

// PromisedMemory returns, by server, what running machines were promised and do not use yet.
func (h *Host) PromisedMemory() (map[string]int64, error) {
	instances, err := h.AllInstances()
	promised := map[string]int64{}
	for _, inst := range instances {
		if on, err := inst.IsRunning(); err != nil || !on {
			continue
		}
		r, err := inst.Load()
		if err != nil {
			continue
		}
		used, _ := proc.ReadUsage(inst.PID()) // nothing where it fails
		promised[r.ID] = max(0, r.Settings.MemoryBytes+memory.OverheadOf(r.Accelerator)-used.MemoryBytes)
	}
	return promised, err
}
