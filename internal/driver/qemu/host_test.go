// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"maps"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// TestReservations : what was promised to others, those included that are being started
// at the same time, is not promised again.
func TestReservations(t *testing.T) {
	t.Parallel()
	var r reservations
	running := map[string]int64{}
	var silence error
	look := func() (int64, map[string]int64, error) { return 16, maps.Clone(running), silence }
	take := func(id string, needed int64) (func(), error) { return r.take(id, needed, look) }
	_, err := take("huge", 17)
	wantError(t, err, driver.ErrExhausted, "needed 17 bytes, available on the host 16, of which 0 are promised")
	first, err := take("a", 8)
	must(t, err)
	second, err := take("b", 8)
	must(t, err)
	_, err = take("c", 8)
	wantError(t, err, driver.ErrExhausted, "needed 8 bytes, available on the host 16, of which 16 are promised")

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

// TestPromised : a machine that runs is promised what it does not use yet, one that
// is off nothing.
func TestPromised(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec, off := e.spec(), e.spec()
	spec.MemoryBytes = 512 << 20
	off.Power = driver.PowerOff
	s := reach(t, d, spec, driver.StateRunning)
	reach(t, d, off, driver.StateStopped)
	available, promised, err := d.hostMemory()
	must(t, err)
	if n := promised[s.ID]; len(promised) != 1 || n <= 0 || n >= spec.MemoryBytes || available <= 0 {
		t.Errorf("available are %d, promised %v", available, promised)
	}
	if len(d.room.starting) != 0 {
		t.Errorf("being started are %v", d.room.starting)
	}
	gone(t, d, spec)
	gone(t, d, off)
}

// TestProcessHidden : a machine that runs, and whose process cannot be found, is
// promised all its memory, and who is to kill it says what is wrong.
func TestProcessHidden(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	spec := e.spec()
	spec.Power = driver.PowerOff
	s := reach(t, d, spec, driver.StateStopped)
	h := d.home(spec.UID)
	held, err := h.claimRun()
	must(t, err)
	_, promised, err := d.hostMemory()
	must(t, err)
	if len(promised) != 1 || promised[s.ID] != spec.MemoryBytes {
		t.Errorf("promised are %v", promised)
	}
	soon, cancel := context.WithTimeout(t.Context(), lookEvery)
	defer cancel()
	wantError(t, h.kill(soon, spec.UID), context.DeadlineExceeded, string(spec.UID), "its process cannot be found", "as another user", "QEMU still runs")
	must(t, held.Close())
	must(t, h.kill(t.Context(), spec.UID))
	gone(t, d, spec)
}
