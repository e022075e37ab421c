// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/proc"
)

// TestReservations checks that what was promised to others, including those that are
// being started, is not promised again.
func TestReservations(t *testing.T) {
	t.Parallel()
	var r reservations
	running := map[string]int64{}
	var silence error
	look := func() (room, error) {
		return room{available: 16, where: "on the host", promised: maps.Clone(running)}, silence
	}
	take := func(id string, needed int64) (func(), error) { return r.take(id, demand{guest: needed}, look) }
	_, err := take("huge", 17)
	wantError(t, err, driver.ErrExhausted, "needed 17 bytes", "available 16 on the host, of which 0 are promised")
	first, err := take("a", 8)
	must(t, err)
	second, err := take("b", 8)
	must(t, err)
	_, err = take("c", 8)
	wantError(t, err, driver.ErrExhausted, "needed 8 bytes", "available 16 on the host, of which 16 are promised")

	running["a"] = 6 // it has begun to use it
	first()
	second()
	third, err := take("c", 10)
	must(t, err)
	_, err = take("d", 1)
	wantError(t, err, driver.ErrExhausted, "of which 16 are promised")
	third()
	silence = errors.New("it does not tell")
	if _, err := take("huge", 17); err != nil {
		t.Errorf("a host that does not tell: %v", err)
	}
}

// TestMachinesThatRanBefore checks that a machine which ran with as much memory is
// admitted to the reserve, so that a host which restarts runs what it ran.
func TestMachinesThatRanBefore(t *testing.T) {
	t.Parallel()
	var r reservations
	look := func() (room, error) {
		return room{available: 16, reserve: 4, where: "on the host", promised: map[string]int64{}}, nil
	}
	ran := &server{record: record{StartedAt: time.Unix(1, 0), Settings: settings{MemoryBytes: 20}}}
	spec := driver.ServerSpec{MemoryBytes: 20}
	must(t, r.check(demandOf(ran, spec, machine.AccelTCG), look))
	wantError(t, r.check(demandOf(&server{}, spec, machine.AccelTCG), look), driver.ErrExhausted, "needed 20 bytes")
	smaller := &server{record: record{StartedAt: time.Unix(1, 0), Settings: settings{MemoryBytes: 19}}}
	wantError(t, r.check(demandOf(smaller, spec, machine.AccelTCG), look), driver.ErrExhausted, "needed 20 bytes")
	spec.MemoryBytes = 21
	wantError(t, r.check(demandOf(ran, spec, machine.AccelTCG), look), driver.ErrExhausted, "needed 21 bytes")
}

// TestPromised checks that a running machine is promised what it does not use yet, and
// that one which is off is promised nothing.
func TestPromised(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, off := e.spec(), e.spec()
	spec.MemoryBytes = 512 << 20
	off.Power = driver.PowerOff
	s := reach(t, d, spec, driver.StateRunning)
	reach(t, d, off, driver.StateStopped)
	have, err := d.hostMemory()
	must(t, err)
	if n := have.promised[s.ID]; len(have.promised) != 1 || n <= 0 || n >= spec.MemoryBytes+overheadTCG || have.available <= 0 {
		t.Errorf("there is %+v", have)
	}
	if len(d.room.starting) != 0 {
		t.Errorf("being started are %v", d.room.starting)
	}
	gone(t, d, spec)
	gone(t, d, off)
}

// TestProcessHidden checks that a running machine whose process cannot be found is
// promised all its memory, and that an attempt to kill it reports the cause.
func TestProcessHidden(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	spec.Power = driver.PowerOff
	s := reach(t, d, spec, driver.StateStopped)
	h := d.home(spec.UID)
	held, err := h.ClaimRun()
	must(t, err)
	promised, err := d.promised()
	must(t, err)
	if len(promised) != 1 || promised[s.ID] != spec.MemoryBytes+overheadTCG {
		t.Errorf("promised are %v", promised)
	}
	soon, cancel := context.WithTimeout(t.Context(), proc.PollEvery)
	defer cancel()
	wantError(t, h.Kill(soon), context.DeadlineExceeded, string(spec.UID), "its process cannot be found", "as another user", "QEMU still runs")
	must(t, held.Close())
	must(t, h.Kill(t.Context()))
	gone(t, d, spec)
}

func TestParseReserve(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 512 << 20, "0": 0, "2Gi": 2 << 30, "1G": 1e9} {
		reserve, err := parseReserve(text)
		must(t, err)
		if got := reserve(4 << 30); got != want {
			t.Errorf("%q keeps %d of 4 GiB, want %d", text, got, want)
		}
	}
	reserve, err := parseReserve("")
	must(t, err)
	if got := reserve(100 << 30); got != 5<<30 {
		t.Errorf("%d are kept of 100 GiB, want 5 %%", got)
	}
	for _, text := range []string{"-1", "5%", "much"} {
		if _, err := New(Options{ClusterID: "c", Dir: t.TempDir(), ReserveMemory: text}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("--qemu-reserve-memory is %q", text)) {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestReserveIsKept checks that a machine is not started if it fits only without the
// reserve or without QEMU's own memory.
func TestReserveIsKept(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	figures, err := proc.ReadFigures("/proc/meminfo")
	must(t, err)
	o.ReserveMemory = fmt.Sprint(figures["MemTotal"])
	d := openWith(t, o)
	spec := e.spec()
	_, err = d.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrExhausted, "resource.memory: needed", fmt.Sprintf("%d for QEMU itself", overheadTCG), "on the host (besides "+o.ReserveMemory+" that --qemu-reserve-memory keeps)")

	d.reserve = func(int64) int64 { return 0 }
	d.groupMemory = func() (string, int64, error) { return "/some/group", spec.MemoryBytes + overheadTCG - 1, nil }
	_, err = d.Ensure(t.Context(), spec)
	wantError(t, err, driver.ErrExhausted, fmt.Sprintf("available %d below the memory limit of /some/group", spec.MemoryBytes+overheadTCG-1), "below the memory limit of /some/group")
	d.groupMemory = func() (string, int64, error) { return "/some/group", spec.MemoryBytes + overheadTCG, nil }
	reach(t, d, spec, driver.StateRunning)
	gone(t, d, spec)
}
