// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package memory admits machines to the memory of a host. Memory that was promised to a machine
// is not promised to another one, even while the first does not use it.
//
// Start with Reservations.
package memory

import (
	"fmt"
	"maps"
	"sync"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
)

// Memory that a machine needs in addition to the guest's memory: for QEMU, with some margin over the
// measurements in docs/performance.md, and for the supervisor. For an emulated guest QEMU also has a
// cache of translated code, which package launch bounds.
const (
	OverheadKVM = 64<<20 + supervisor
	OverheadTCG = 160<<20 + supervisor
	// supervisor is the memory of a supervisor, and of all connections through its edge.
	supervisor = 4<<20 + control.EdgeMemoryBytes
)

// OverheadOf returns the overhead for an accelerator. For an unknown accelerator it is the larger
// one.
func OverheadOf(accel string) int64 {
	if accel == machine.AccelKVM {
		return OverheadKVM
	}
	return OverheadTCG
}

// Room is the memory that is available for guests.
type Room struct {
	Available int64
	// Reserve is additional memory that the host keeps free. Only a machine with RanBefore may
	// use it.
	Reserve int64
	// Where names, for people, the owner of Available, such as the host or a control group.
	Where string
	// Promised has, by server, the memory that each running machine was promised but does not
	// use yet. It is a part of Available.
	Promised map[string]int64
}

// ShortageError means that the memory is too small for a machine.
type ShortageError struct {
	Demand

	Available int64
	Where     string
	// Promised is the part of Available that other machines were promised.
	Promised int64
}

func (e *ShortageError) Error() string {
	return fmt.Sprintf("needed %d bytes and %d for QEMU, its supervisor and files, available %d %s, of which %d are promised to other machines",
		e.Guest, e.Overhead, e.Available, e.Where, e.Promised)
}

// Reservations admit guests to the memory of the host.
type Reservations struct {
	mu sync.Mutex
	// starting has, by server, the memory that starting machines need.
	starting map[string]int64
}

// Demand is the memory that a machine needs for its guest, and as overhead. Freed is memory that
// the machine frees first. RanBefore is set for a machine that has run with as much memory
// before. It may use the reserve, and its overhead does not count. So a host can run the same
// machines after its restart, even if earlier versions started them without reserve and overhead.
type Demand struct {
	Guest, Overhead, Freed int64
	RanBefore              bool
}

// Take reserves memory for a machine until its start is over. It fails with a ShortageError if
// the memory is too small.
func (r *Reservations) Take(id string, want Demand, findRoom func() (Room, error)) (release func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.admitDemand(want, findRoom); err != nil {
		return nil, err
	}
	if r.starting == nil {
		r.starting = map[string]int64{}
	}
	r.starting[id] = want.Guest + want.Overhead
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.starting, id)
	}, nil
}

// Check fails with a ShortageError if Take would.
func (r *Reservations) Check(want Demand, findRoom func() (Room, error)) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.admitDemand(want, findRoom)
}

// admitDemand requires the lock.
func (r *Reservations) admitDemand(want Demand, findRoom func() (Room, error)) error {
	have, err := findRoom()
	if err != nil {
		return nil //nolint:nilerr // A host whose memory is unknown is tried.
	}
	maps.Copy(have.Promised, r.starting)
	var others int64
	for _, n := range have.Promised {
		others += n
	}
	if want.RanBefore {
		have.Available, want.Overhead = have.Available+have.Reserve, 0
	}
	have.Available += want.Freed
	if want.Guest+want.Overhead > have.Available-others {
		return &ShortageError{Demand: want, Available: have.Available, Where: have.Where, Promised: others}
	}
	return nil
}
