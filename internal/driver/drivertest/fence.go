// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"errors"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// at returns spec under another epoch.
func at(spec driver.ServerSpec, epoch uint64) driver.ServerSpec {
	spec.Epoch = epoch
	return spec
}

// testFenceOldEpoch simulates a leader that continues after a newer one has acted,
// though only on another server.
func testFenceOldEpoch(t *testing.T, e *env) {
	spec, elsewhere := at(e.spec(t, "old"), 5), at(e.spec(t, "elsewhere"), 7)
	before := e.reach(t, spec, driver.StateRunning)
	e.reachVia(t, e.open(t, e.cluster), elsewhere, "a server of the new leader's", func(s driver.Server) bool { return s.ID != "" })

	off := spec
	off.Power = driver.PowerOff
	_, err := e.d.Ensure(t.Context(), off)
	wantKind(t, "Ensure under the old epoch", err, driver.ErrFenced)
	for _, retain := range []bool{false, true} {
		err = e.d.Delete(t.Context(), spec.Target, retain)
		wantKind(t, "Delete under the old epoch", err, driver.ErrFenced)
	}
	late := at(e.spec(t, "late"), 5)
	_, err = e.d.Ensure(t.Context(), late)
	wantKind(t, "creating under the old epoch", err, driver.ErrFenced)

	sameRun(t, one(t, e.d, spec.UID), before)
	if made := list(t, e.d, late.UID); len(made) != 0 {
		t.Errorf("the call that was refused made %s", describe(made...))
	}
	sameRun(t, e.reach(t, at(spec, 7), driver.StateRunning), before)
}

// testFenceOutlivesServers checks that an old leader cannot recreate a server that a
// newer one has removed.
func testFenceOutlivesServers(t *testing.T, e *env) {
	spec := at(e.spec(t, "removed"), 7)
	e.reach(t, spec, driver.StateRunning)
	e.gone(t, e.d, spec.UID)
	for name, d := range map[string]driver.Driver{"the same": e.d, "a new": e.open(t, e.cluster)} {
		_, err := d.Ensure(t.Context(), at(spec, 6))
		wantKind(t, "Ensure under the old epoch through "+name+" connection", err, driver.ErrFenced)
	}
	if left := list(t, e.d, spec.UID); len(left) != 0 {
		t.Errorf("the server is back: %s", describe(left...))
	}
}

// testFencePerCluster checks that the epochs of clusters are independent.
func testFencePerCluster(t *testing.T, e *env) {
	e.reach(t, at(e.spec(t, "high"), 1_000_000), driver.StateRunning)
	other := e.open(t, string(newUID()))
	e.reachVia(t, other, at(e.spec(t, "low"), 2), "a server of another cluster", func(s driver.Server) bool { return s.ID != "" })
}

// testFenceUnderLoad lets many leaders act on one server at once: the accepted epoch
// never decreases.
func testFenceUnderLoad(t *testing.T, e *env) {
	const leaders, calls = 8, 50
	spec := e.spec(t, "load")
	var accepted atomic.Uint64
	inParallel(leaders, func(i int) {
		d, mine := e.open(t, e.cluster), at(spec, uint64(i)+1) //nolint:gosec // not negative
		for range calls {
			before := accepted.Load()
			_, err := d.Ensure(t.Context(), mine)
			switch {
			case err == nil && before > mine.Epoch:
				t.Errorf("epoch %d was accepted after %d", mine.Epoch, before)
			case err == nil:
				raise(&accepted, mine.Epoch)
			case !errors.Is(err, driver.ErrFenced) && !errors.Is(err, driver.ErrRetry):
				t.Errorf("Ensure: got the error %v, want none, %v or %v", err, driver.ErrFenced, driver.ErrRetry)
			}
		}
	})
	e.reach(t, at(spec, leaders), driver.StateRunning)
	_, err := e.d.Ensure(t.Context(), at(spec, leaders-1))
	wantKind(t, "Ensure under the last epoch but one", err, driver.ErrFenced)
	one(t, e.d, spec.UID)
}

func raise(highest *atomic.Uint64, to uint64) {
	for {
		now := highest.Load()
		if now >= to || highest.CompareAndSwap(now, to) {
			return
		}
	}
}
