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

func withEpoch(spec driver.ServerSpec, epoch uint64) driver.ServerSpec {
	spec.Epoch = epoch
	return spec
}

// testFenceOldEpoch checks that an old leader is refused once a newer one has acted on any
// server, or, if FencesPerServer is set, on the same server.
func testFenceOldEpoch(t *testing.T, e *env) {
	spec := withEpoch(e.newSpec(t, "old"), 5)
	before := e.ensureState(t, spec, driver.StateRunning)
	if e.FencesPerServer {
		e.ensureState(t, e.stopSpec(withEpoch(spec, 7)), driver.StateStopped)
		before = e.ensureState(t, withEpoch(spec, 7), driver.StateRunning)
	} else {
		elsewhere := withEpoch(e.newSpec(t, "elsewhere"), 7)
		e.ensureUntil(t, e.openDriver(t, e.cluster), elsewhere, "a server of the new leader", func(s driver.Server) bool { return s.ID != "" })
	}

	want := driver.ErrFenced
	if e.FencesPerServer {
		want = driver.ErrRetry
	}
	stop := withPower(spec, driver.PowerOff)
	wantErrorKind(t, "Ensure under the old epoch", want, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), stop)) })
	for _, retain := range []bool{false, true} {
		wantErrorKind(t, "Delete under the old epoch", want, func() error { return e.driver.Delete(t.Context(), spec.Target, retain) })
	}
	if !e.FencesPerServer {
		e.checkCreationFenced(t, withEpoch(e.newSpec(t, "late"), 5))
	}

	wantSameRun(t, listOne(t, e.driver, spec.UID), before)
	wantSameRun(t, e.ensureState(t, withEpoch(spec, 7), driver.StateRunning), before)
}

// checkCreationFenced checks that a leader with an old epoch cannot create a server.
func (e *env) checkCreationFenced(t *testing.T, spec driver.ServerSpec) {
	t.Helper()
	wantErrorKind(t, "creating under the old epoch", driver.ErrFenced, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), spec)) })
	created := listServers(t, e.driver, spec.UID)
	assert.True(t, len(created) == 0, "the refused call created %s", describeServers(created...))
}

// testFenceOutlivesServers checks that an old leader cannot recreate a server that a newer
// leader has removed.
func testFenceOutlivesServers(t *testing.T, e *env) {
	spec := withEpoch(e.newSpec(t, "removed"), 7)
	e.ensureState(t, spec, driver.StateRunning)
	e.deleteUntilGone(t, e.driver, spec.UID)
	for name, d := range map[string]driver.Driver{"the same": e.driver, "a new": e.openDriver(t, e.cluster)} {
		wantErrorKind(t, "Ensure under the old epoch through "+name+" connection", driver.ErrFenced, func() error { return assert.ErrorOf(d.Ensure(t.Context(), withEpoch(spec, 6))) })
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

// testFenceUnderLoad checks that the accepted epoch never decreases while many leaders act on
// one server.
func testFenceUnderLoad(t *testing.T, e *env) {
	const leaders, calls = 8, 50
	spec := e.newSpec(t, "load")
	var accepted atomic.Uint64
	runParallel(leaders, func(i int) {
		d, leaderSpec := e.openDriver(t, e.cluster), withEpoch(spec, uint64(i)+1) //nolint:gosec // not negative
		for range calls {
			before := accepted.Load()
			_, err := d.Ensure(t.Context(), leaderSpec)
			switch {
			case err == nil && before > leaderSpec.Epoch:
				t.Errorf("epoch %d was accepted after epoch %d", leaderSpec.Epoch, before)
			case err == nil:
				raiseMaximum(&accepted, leaderSpec.Epoch)
			case !errors.Is(err, driver.ErrFenced) && !isTransient(err):
				t.Errorf("Ensure: got the error %v, want none, %v or a transient one", err, driver.ErrFenced)
			}
		}
	})
	e.ensureState(t, withEpoch(spec, leaders), driver.StateRunning)
	wantErrorKind(t, "Ensure under the last epoch but one", driver.ErrFenced, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), withEpoch(spec, leaders-1))) })
	listOne(t, e.driver, spec.UID)
}

func raiseMaximum(maximum *atomic.Uint64, value uint64) {
	for {
		current := maximum.Load()
		if current >= value || maximum.CompareAndSwap(current, value) {
			return
		}
	}
}
