// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"maps"
	"sync"

	"k8s.io/apimachinery/pkg/api/resource"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
)

// What QEMU takes beside its guest's memory, somewhat more than was measured (see
// docs/performance.md). For an emulated guest it also holds the translated code.
const (
	overheadKVM = 64 << 20
	overheadTCG = 160 << 20
)

// overheadOf returns the overhead of an accelerator. An unknown one gets the larger
// overhead.
func overheadOf(accel string) int64 {
	if accel == machine.AccelKVM {
		return overheadKVM
	}
	return overheadTCG
}

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

// room is the memory that there is for guests.
type room struct {
	available int64
	// reserve is what the host keeps besides. Only machines that have had their memory
	// before get it.
	reserve int64
	// where says, for people, what the memory is part of.
	where string
	// promised holds, by server, the memory that each running machine was promised and does
	// not use yet. It is unused, but not free.
	promised map[string]int64
}

// reservations admit guests to the memory of the host.
type reservations struct {
	mu sync.Mutex
	// starting holds, by server, the memory that starting guests need.
	starting map[string]int64
}

// demand is what a machine needs: its guest's memory and QEMU's own. given is what the
// machine frees first. ranBefore is set for a machine that has run with as much. It is
// admitted to the reserve, and without QEMU's own memory, so that a host which restarts
// runs what it ran, including machines of versions that knew neither.
type demand struct {
	guest, overhead, given int64
	ranBefore              bool
}

func demandOf(s *server, spec driver.ServerSpec, accel string) demand {
	return demand{
		guest: spec.MemoryBytes, overhead: overheadOf(accel),
		ranBefore: !s.StartedAt.IsZero() && s.Settings.MemoryBytes == spec.MemoryBytes,
	}
}

// take sets memory aside for a machine until its start is over, and refuses a machine
// that does not fit.
func (r *reservations) take(id string, want demand, look func() (room, error)) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admit(want, look); err != nil {
		return nil, err
	}
	if r.starting == nil {
		r.starting = map[string]int64{}
	}
	r.starting[id] = want.guest + want.overhead
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.starting, id)
	}, nil
}

// check reports whether a machine would be admitted.
func (r *reservations) check(want demand, look func() (room, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admit(want, look)
}

// admit requires the lock.
func (r *reservations) admit(want demand, look func() (room, error)) error {
	have, err := look()
	if err != nil {
		return nil //nolint:nilerr // A host that does not tell is tried.
	}
	maps.Copy(have.promised, r.starting)
	var others int64
	for _, n := range have.promised {
		others += n
	}
	if want.ranBefore {
		have.available, want.overhead = have.available+have.reserve, 0
	}
	have.available += want.given
	if want.guest+want.overhead > have.available-others {
		return driver.Errorf(driver.ErrExhausted,
			"resource.memory: needed %d bytes and %d for QEMU itself, available %d %s, of which %d are promised to other machines", want.guest, want.overhead, have.available, have.where, others)
	}
	return nil
}

// hostMemory returns what reservations check against: what is left of the host's memory
// besides the reserve, or of the control group that Drover and its machines are in.
// Machines of other clusters and released ones count like any other. A machine whose use
// cannot be read, as of another user, counts as if it used nothing yet.
func (d *Driver) hostMemory() (room, error) {
	host, err := proc.ReadFigures("/proc/meminfo")
	if err != nil {
		return room{}, err
	}
	kept := d.reserve(host["MemTotal"])
	have := room{available: host["MemAvailable"] - kept, reserve: kept, where: fmt.Sprintf("on the host (besides %d that --qemu-reserve-memory keeps)", kept)}
	if group, free, err := d.groupMemory(); err == nil && free < have.available {
		have.available, have.reserve, have.where = free, 0, "below the memory limit of "+group
	}
	have.promised, err = d.promised()
	return have, err
}

func (d *Driver) promised() (map[string]int64, error) {
	homes, err := homesIn(d.dir)
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
		promised[r.ID] = max(0, r.Settings.MemoryBytes+overheadOf(d.accelOf(server{instanceDir: h, record: r}))-used.MemoryBytes)
	}
	return promised, err
}
