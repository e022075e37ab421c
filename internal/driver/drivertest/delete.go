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
	wantErrorKind(t, "Delete of a server that never existed", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), never, false) })
	wantErrorKind(t, "Release of a server that never existed", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), never, true) })

	spec := e.newSpec(t, "gone")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.deleteUntilGone(t, e.driver, spec.UID)
	wantErrorKind(t, "Delete with the ID of a removed server", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), driver.Target{UID: spec.UID, ID: first.ID}, false) })

	if !e.FixedID {
		byID := spec
		byID.ID = first.ID
		wantErrorKind(t, "Ensure with the ID of a removed server", driver.ErrNotFound, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), byID)) })
		left := listServers(t, e.driver)
		assert.True(t, len(left) == 0, "Ensure of a removed server made %s", describeServers(left...))
	}
	again := e.ensureState(t, spec, driver.StateRunning)
	e.checkRecreated(t, again, first)
}

// checkRecreated checks that a recreated server has another run than the removed one and, without FixedID, another ID.
func (e *env) checkRecreated(t *testing.T, recreated, removed driver.Server) {
	t.Helper()
	assert.True(t, (recreated.ID == removed.ID) == e.FixedID && recreated.Run != removed.Run,
		"the recreated server is %s and the removed one was %s: want different Runs, and equal IDs to be %v", describeServers(recreated), describeServers(removed), e.FixedID)
}

func testDeleteInAnyState(t *testing.T, e *env) {
	for _, power := range []driver.Power{driver.PowerOn, driver.PowerPaused, driver.PowerOff} {
		spec := withPower(e.newSpec(t, "delete-me"), power)
		s := e.ensureState(t, spec, stateFor(power))
		deleteOnce(t, e.driver, driver.Target{UID: spec.UID, ID: s.ID}, false)
		e.deleteUntilGone(t, e.driver, spec.UID)
	}
}

func stateFor(p driver.Power) driver.State {
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

// testDeleteWhileCreating checks that concurrent calls of Ensure and Delete leave at most one
// server, and that a later Delete leaves nothing.
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

// testRetain checks that a released server keeps running, and that no call for its UID reaches it.
func testRetain(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Remove != nil, "OutOfBand.Remove")
	spec := e.newSpec(t, "kept")
	s := e.ensureState(t, spec, driver.StateRunning)
	deleteOnce(t, e.driver, driver.Target{UID: spec.UID, ID: s.ID}, true)

	for _, retain := range []bool{true, false} {
		wantErrorKind(t, "Delete of a released server", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), driver.Target{UID: spec.UID}, retain) })
		wantErrorKind(t, "Delete of a released server by ID", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), driver.Target{UID: spec.UID, ID: s.ID}, retain) })
	}
	checkRetained(t, e.driver, spec.UID, s)

	if e.FixedID {
		wantErrorKind(t, "Ensure of the UID of a released server", driver.ErrRetry, func() error { return assert.ErrorOf(e.driver.Ensure(t.Context(), e.stopSpec(spec))) })
	} else {
		e.checkUIDFree(t, spec, s)
	}
	checkRetained(t, e.driver, spec.UID, s)
}

// checkUIDFree checks that a new server can have the UID of a released one.
func (e *env) checkUIDFree(t *testing.T, spec driver.ServerSpec, released driver.Server) {
	t.Helper()
	next := e.ensureState(t, spec, driver.StateRunning)
	assert.True(t, next.ID != released.ID, "Ensure returned the released server %s", describeServers(next))
	e.deleteUntilGone(t, e.driver, spec.UID)
}

// checkRetained checks that the complete list has only the released server, marked as retained and still in its run.
func checkRetained(t *testing.T, d driver.Driver, uid types.UID, released driver.Server) {
	t.Helper()
	found := 0
	for _, s := range listServers(t, d) {
		if s.ID != released.ID {
			t.Errorf("besides the released server there is %s", describeServers(s))
			continue
		}
		found++
		wantSameRun(t, s, released)
		assert.True(t, s.Retained, "the released server is not marked as retained: %s", describeServers(s))
	}
	assert.True(t, found == 1, "the complete list has the released server %d times, want once", found)
	for _, s := range listServers(t, d, uid) {
		assert.True(t, s.Retained, "List by UID shows %s, want only servers that are marked as retained", describeServers(s))
	}
}
