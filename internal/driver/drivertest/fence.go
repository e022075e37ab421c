// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"errors"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// withEpoch returns spec under another epoch.
func withEpoch(spec driver.ServerSpec, epoch uint64) driver.ServerSpec {
	spec.Epoch = epoch
	return spec
}

// testFenceOldEpoch simulates a leader that continues after a newer one has acted,
// though only on another server where that fences.
func testFenceOldEpoch(t *testing.T, e *env) {
	spec := withEpoch(e.newSpec(t, "old"), 5)
	before := e.ensureState(t, spec, driver.StateRunning)
	if e.FencesEach {
		e.ensureState(t, e.stopSpec(withEpoch(spec, 7)), driver.StateStopped)
		before = e.ensureState(t, withEpoch(spec, 7), driver.StateRunning)
	} else {
		elsewhere := withEpoch(e.newSpec(t, "elsewhere"), 7)
		e.ensureUntil(t, e.openDriver(t, e.cluster), elsewhere, "a server of the new leader's", func(s driver.Server) bool { return s.ID != "" })
	}

	off, want := spec, driver.ErrFenced
	if e.FencesEach {
		want = driver.ErrRetry
	}
	off.Power = driver.PowerOff
	wantKind(t, "Ensure under the old epoch", want, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), off)) })
	for _, retain := range []bool{false, true} {
		wantKind(t, "Delete under the old epoch", want, func() error { return e.driver.Delete(t.Context(), spec.Target, retain) })
	}
	if !e.FencesEach {
		e.checkMakesNone(t, withEpoch(e.newSpec(t, "late"), 5))
	}

	wantSameRun(t, listOne(t, e.driver, spec.UID), before)
	wantSameRun(t, e.ensureState(t, withEpoch(spec, 7), driver.StateRunning), before)
}

// checkMakesNone checks that no server is made under an old epoch.
func (e *env) checkMakesNone(t *testing.T, late driver.ServerSpec) {
	t.Helper()
	wantKind(t, "creating under the old epoch", driver.ErrFenced, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), late)) })
	made := listServers(t, e.driver, late.UID)
	assert.True(t, len(made) == 0, "the call that was refused made %s", describeServers(made...))
}

// testFenceOutlivesServers checks that an old leader cannot recreate a server that a
// newer one has removed.
func testFenceOutlivesServers(t *testing.T, e *env) {
	spec := withEpoch(e.newSpec(t, "removed"), 7)
	e.ensureState(t, spec, driver.StateRunning)
	e.deleteUntilGone(t, e.driver, spec.UID)
	for name, d := range map[string]driver.Driver{"the same": e.driver, "a new": e.openDriver(t, e.cluster)} {
		wantKind(t, "Ensure under the old epoch through "+name+" connection", driver.ErrFenced, func() error { return assert.ErrorOf(d.Ensure(t.Context(), withEpoch(spec, 6))) })
	}
	left := listServers(t, e.driver, spec.UID)
	assert.True(t, len(left) == 0, "the server is back: %s", describeServers(left...))
}

// testFencePerCluster checks that the epochs of clusters are independent.
func testFencePerCluster(t *testing.T, e *env) {
	e.ensureState(t, withEpoch(e.newSpec(t, "high"), 1_000_000), driver.StateRunning)
	other := e.openDriver(t, string(newUID()))
	e.ensureUntil(t, other, withEpoch(e.newSpec(t, "low"), 2), "a server of another cluster", func(s driver.Server) bool { return s.ID != "" })
}

// testFenceUnderLoad lets many leaders act on one server at once: the accepted epoch
// never decreases.
func testFenceUnderLoad(t *testing.T, e *env) {
	const leaders, calls = 8, 50
	spec := e.newSpec(t, "load")
	var accepted atomic.Uint64
	runParallel(leaders, func(i int) {
		d, mine := e.openDriver(t, e.cluster), withEpoch(spec, uint64(i)+1) //nolint:gosec // not negative
		for range calls {
			before := accepted.Load()
			_, err := d.Ensure(t.Context(), mine)
			switch {
			case err == nil && before > mine.Epoch:
				t.Errorf("epoch %d was accepted after %d", mine.Epoch, before)
			case err == nil:
				raiseTo(&accepted, mine.Epoch)
			case !errors.Is(err, driver.ErrFenced) && !isPassing(err):
				t.Errorf("Ensure: got the error %v, want none, %v or one that passes", err, driver.ErrFenced)
			}
		}
	})
	e.ensureState(t, withEpoch(spec, leaders), driver.StateRunning)
	wantKind(t, "Ensure under the last epoch but one", driver.ErrFenced, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), withEpoch(spec, leaders-1))) })
	listOne(t, e.driver, spec.UID)
}

func raiseTo(highest *atomic.Uint64, to uint64) {
	for {
		now := highest.Load()
		if now >= to || highest.CompareAndSwap(now, to) {
			return
		}
	}
}
