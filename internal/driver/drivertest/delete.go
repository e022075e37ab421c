// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/test/assert"
)

func testDeleteGone(t *testing.T, e *env) {
	never := driver.Target{UID: newUID()}
	wantKind(t, "Delete of a server that never existed", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), never, false) })
	wantKind(t, "Release of a server that never existed", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), never, true) })

	spec := e.newSpec(t, "gone")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.deleteUntilGone(t, e.driver, spec.UID)
	wantKind(t, "Delete with the ID of a removed server", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), driver.Target{UID: spec.UID, ID: first.ID}, false) })

	if !e.FixedID {
		byID := spec
		byID.ID = first.ID
		wantKind(t, "Ensure with the ID of a removed server", driver.ErrNotFound, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), byID)) })
		left := listServers(t, e.driver)
		assert.True(t, len(left) == 0, "Ensure of a removed server made %s", describeServers(left...))
	}
	again := e.ensureState(t, spec, driver.StateRunning)
	e.checkMadeAgain(t, again, first)
}

// checkMadeAgain checks that a server is another one than the one that was removed.
func (e *env) checkMadeAgain(t *testing.T, again, first driver.Server) {
	t.Helper()
	assert.True(t, (again.ID == first.ID) == e.FixedID && again.Run != first.Run,
		"made again it is %s, want another Run than %s, and the same ID: %v", describeServers(again), describeServers(first), e.FixedID)
}

func testDeleteInAnyState(t *testing.T, e *env) {
	for _, power := range []driver.Power{driver.PowerOn, driver.PowerPaused, driver.PowerOff} {
		spec := withPower(e.newSpec(t, "delete-me"), power)
		s := e.ensureState(t, spec, stateOf(power))
		deleteOnce(t, e.driver, driver.Target{UID: spec.UID, ID: s.ID}, false)
		e.deleteUntilGone(t, e.driver, spec.UID)
	}
}

func stateOf(p driver.Power) driver.State {
	switch p {
	case driver.PowerOff:
		return driver.StateStopped
	case driver.PowerPaused:
		return driver.StatePaused
	default: // PowerOn
		return driver.StateRunning
	}
}

func testDeleteFromTwoCallers(t *testing.T, e *env) {
	spec := e.newSpec(t, "delete-twice")
	e.ensureState(t, spec, driver.StateRunning)
	other := e.openDriver(t, e.cluster)
	runParallel(6, func(i int) {
		d := []driver.Driver{e.driver, other}[i%2]
		err := d.Delete(t.Context(), spec.Target, false)
		assert.True(t, err == nil || !isFinal(err), "Delete: got the final error %v", err)
	})
	e.deleteUntilGone(t, other, spec.UID)
}

// testDeleteWhileCreating checks that whichever call comes last wins, and that a Delete
// that follows leaves nothing.
func testDeleteWhileCreating(t *testing.T, e *env) {
	spec := e.newSpec(t, "create-and-delete")
	runParallel(6, func(i int) {
		if i%2 == 0 {
			_, _ = e.driver.Ensure(t.Context(), spec)
			return
		}
		_ = e.driver.Delete(t.Context(), spec.Target, false)
	})
	all := listServers(t, e.driver, spec.UID)
	assert.True(t, len(all) <= 1, "got %s, want one server at most", describeServers(all...))
	e.deleteUntilGone(t, e.driver, spec.UID)
}

// testRetain checks that a released server stays on and belongs to no UID.
func testRetain(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Remove != nil, "OutOfBand.Remove")
	spec := e.newSpec(t, "kept")
	s := e.ensureState(t, spec, driver.StateRunning)
	deleteOnce(t, e.driver, driver.Target{UID: spec.UID, ID: s.ID}, true)

	for _, retain := range []bool{true, false} {
		wantKind(t, "Delete of a released server", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), driver.Target{UID: spec.UID}, retain) })
		wantKind(t, "Delete of a released server by ID", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), driver.Target{UID: spec.UID, ID: s.ID}, retain) })
	}
	checkRetained(t, e.driver, spec.UID, s)

	if e.FixedID {
		wantKind(t, "Ensure of the UID of a released server", driver.ErrRetry, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), e.stopSpec(spec))) })
	} else {
		e.checkFree(t, spec, s)
	}
	checkRetained(t, e.driver, spec.UID, s)
}

// checkFree checks that the UID of a released server is free again, as if it was removed.
func (e *env) checkFree(t *testing.T, spec driver.ServerSpec, released driver.Server) {
	t.Helper()
	next := e.ensureState(t, spec, driver.StateRunning)
	assert.True(t, next.ID != released.ID, "Ensure took the released %s back", describeServers(next))
	e.deleteUntilGone(t, e.driver, spec.UID)
}

// checkRetained checks that the complete list shows a released server as such, still on.
func checkRetained(t *testing.T, d driver.Driver, uid types.UID, was driver.Server) {
	t.Helper()
	kept := 0
	for _, s := range listServers(t, d) {
		if s.ID != was.ID {
			t.Errorf("besides the released server there is %s", describeServers(s))
			continue
		}
		kept++
		wantSameRun(t, s, was)
		assert.True(t, s.Retained, "the released server is not marked: %s", describeServers(s))
	}
	assert.True(t, kept == 1, "the complete list shows the released server %d times, want once", kept)
	for _, s := range listServers(t, d, uid) {
		assert.True(t, s.Retained, "List by UID still shows %s, want no server of that UID", describeServers(s))
	}
}
