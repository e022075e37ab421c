// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
)

// defaultReserve is the minimum that is reserved of the host's memory, and reservePart
// the divisor that gives the reserve of a larger host.
const (
	defaultReserve = 512 << 20
	reservePart    = 20
)

func parseReserve(text string) (func(total int64) int64, error) {
	if text == "" {
		return func(total int64) int64 { return max(defaultReserve, total/reservePart) }, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Sign() < 0 {
		return nil, fmt.Errorf("--qemu-reserve-memory is %q: it must be a quantity of 0 or more, such as 2Gi; empty means the larger of 5 %% and 512Mi", text)
	}
	return func(int64) int64 { return q.Value() }, nil
}

func demandOf(s *instance, spec driver.ServerSpec, accel string) memory.Demand {
	return memory.Demand{
		Guest: spec.MemoryBytes, Overhead: memory.OverheadOf(accel),
		RanBefore: !s.StartedAt.IsZero() && s.Settings.MemoryBytes == spec.MemoryBytes,
	}
}

// hostMemory returns what reservations check against: what is left of the host's memory
// besides the reserve, or of the control group that Drover and its machines are in.
// Machines of other clusters and released ones count like any other. A machine whose use
// cannot be read, as of another user, counts as if it used nothing yet.
func (d *Driver) hostMemory() (memory.Room, error) {
	host, err := proc.ReadFigures("/proc/meminfo")
	if err != nil {
		return memory.Room{}, err
	}
	kept := d.reserve(host["MemTotal"])
	have := memory.Room{Available: host["MemAvailable"] - kept, Reserve: kept, Where: fmt.Sprintf("on the host (besides %d that --qemu-reserve-memory keeps)", kept)}
	if group, free, err := d.groupMemory(); err == nil && free < have.Available {
		have.Available, have.Reserve, have.Where = free, 0, "below the memory limit of "+group
	}
	have.Promised, err = d.promisedMemory()
	return have, err
}

func (d *Driver) promisedMemory() (map[string]int64, error) {
	homes, err := d.allInstances()
	promised := map[string]int64{}
	for _, h := range homes {
		if on, err := h.IsRunning(); err != nil || !on {
			continue
		}
		r, err := h.load()
		if err != nil {
			continue
		}
		used, _ := proc.ReadUsage(h.PID()) // nothing where it fails
		promised[r.ID] = max(0, r.Settings.MemoryBytes+memory.OverheadOf(r.accelerator())-used.MemoryBytes)
	}
	return promised, err
}
