// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"cloudnative.tw/drover/test/assert"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/memory"
	"cloudnative.tw/drover/internal/machine/proc"
)

// TestMachinesThatRanBefore checks that a machine which ran with as much memory is
// admitted to the reserve, so that a host which restarts runs what it ran.
func TestMachinesThatRanBefore(t *testing.T) {
	t.Parallel()
	var r memory.Reservations
	look := func() (memory.Room, error) {
		return memory.Room{Available: 16, Reserve: 4, Where: "on the host", Promised: map[string]int64{}}, nil
	}
	ran := &instance.Instance{Record: record.Record{StartedAt: time.Unix(1, 0), Settings: record.Settings{MemoryBytes: 20}}}
	spec := driver.ServerSpec{MemoryBytes: 20}
	assert.NoError(t, r.Check(instance.DemandOf(ran, spec, machine.AccelTCG), look))
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(&instance.Instance{}, spec, machine.AccelTCG), look)), driver.ErrExhausted, "needed 20 bytes")
	smaller := &instance.Instance{Record: record.Record{StartedAt: time.Unix(1, 0), Settings: record.Settings{MemoryBytes: 19}}}
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(smaller, spec, machine.AccelTCG), look)), driver.ErrExhausted, "needed 20 bytes")
	spec.MemoryBytes = 21
	wantError(t, instance.ContractError(r.Check(instance.DemandOf(ran, spec, machine.AccelTCG), look)), driver.ErrExhausted, "needed 21 bytes")
}

// TestPromised checks that a running machine is promised what it does not use yet, and
// that one which is off is promised nothing.
func TestPromised(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.MemoryBytes = 512 << 20
	s := reach(t, d, spec, driver.StateRunning)
	off(t, d, e.spec())
	have, err := d.FindRoom()
	assert.NoError(t, err)
	if n := have.Promised[s.ID]; len(have.Promised) != 1 || n <= 0 || n >= spec.MemoryBytes+memory.OverheadTCG || have.Available <= 0 {
		t.Errorf("there is %+v", have)
	}
	// Nothing is set aside for it any more, beside what it was promised.
	err = d.Memory.Check(memory.Demand{Guest: 1 << 62}, d.FindRoom)
	if shortage, ok := errors.AsType[*memory.ShortageError](err); !ok || shortage.Promised >= spec.MemoryBytes+memory.OverheadTCG {
		t.Errorf("set aside are %+v", err)
	}
}

// TestProcessHidden checks that a running machine whose process cannot be found is
// promised all its memory, and that an attempt to kill it reports the cause.
func TestProcessHidden(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := off(t, d, spec)
	h := d.InstanceOf(spec.UID)
	held, err := h.ClaimRun()
	assert.NoError(t, err)
	promised, err := d.PromisedMemory()
	assert.NoError(t, err)
	if len(promised) != 1 || promised[s.ID] != spec.MemoryBytes+memory.OverheadTCG {
		t.Errorf("promised are %v", promised)
	}
	soon, cancel := context.WithTimeout(t.Context(), proc.PollEvery)
	defer cancel()
	wantError(t, h.Kill(soon), context.DeadlineExceeded, string(spec.UID), "its process cannot be found", "as another user", "QEMU still runs")
	assert.NoError(t, held.Close())
	assert.NoError(t, h.Kill(t.Context()))
}

func TestParseReserve(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 512 << 20, "0": 0, "2Gi": 2 << 30, "1G": 1e9} {
		reserve, err := parseReserve(text)
		assert.NoError(t, err)
		if got := reserve(4 << 30); got != want {
			t.Errorf("%q keeps %d of 4 GiB, want %d", text, got, want)
		}
	}
	reserve, err := parseReserve("")
	assert.NoError(t, err)
	if got := reserve(100 << 30); got != 5<<30 {
		t.Errorf("%d are kept of 100 GiB, want 5 %%", got)
	}
	for _, text := range []string{"-1", "5%", "much"} {
		assert.ErrorSays(t, text, assert.ErrorOf(New(Options{ClusterID: "c", Dir: t.TempDir(), ReserveMemory: text})), fmt.Sprintf("--qemu-reserve-memory is %q", text))
	}
}

// TestReserveIsKept checks that a machine is not started if it fits only without the
// reserve or without QEMU's own memory.
func TestReserveIsKept(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	figures, err := proc.ReadFigures("/proc/meminfo")
	assert.NoError(t, err)
	o.ReserveMemory = fmt.Sprint(figures["MemTotal"])
	d := openWith(t, o)
	spec := e.spec()
	refuses(t, d, spec, driver.ErrExhausted, "resource.memory: needed", fmt.Sprintf("%d for QEMU itself", memory.OverheadTCG), "on the host (besides "+o.ReserveMemory+" that --qemu-reserve-memory keeps)")

	d.ReservedOf = func(int64) int64 { return 0 }
	d.FindGroupMemory = func() (string, int64, error) { return "/some/group", spec.MemoryBytes + memory.OverheadTCG - 1, nil }
	refuses(t, d, spec, driver.ErrExhausted, fmt.Sprintf("available %d below the memory limit of /some/group", spec.MemoryBytes+memory.OverheadTCG-1), "below the memory limit of /some/group")
	d.FindGroupMemory = func() (string, int64, error) { return "/some/group", spec.MemoryBytes + memory.OverheadTCG, nil }
	reach(t, d, spec, driver.StateRunning)
}
