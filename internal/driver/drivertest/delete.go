// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

func testDeleteGone(t *testing.T, e *env) {
	never := driver.Target{UID: newUID()}
	wantKind(t, "Delete of what never was", e.d.Delete(t.Context(), never, false), driver.ErrNotFound)
	wantKind(t, "Release of what never was", e.d.Delete(t.Context(), never, true), driver.ErrNotFound)

	spec := e.spec(t, "gone")
	first := e.reach(t, spec, driver.StateRunning)
	e.gone(t, e.d, spec.UID)
	wantKind(t, "Delete with the ID of what is gone",
		e.d.Delete(t.Context(), driver.Target{UID: spec.UID, ID: first.ID}, false), driver.ErrNotFound)

	again := e.reach(t, spec, driver.StateRunning)
	if again.ID == first.ID || again.Run == first.Run {
		t.Errorf("made again it is %s, want another ID and Run than %s", describe(again), describe(first))
	}
}

func testDeleteInAnyState(t *testing.T, e *env) {
	for _, power := range []driver.Power{driver.PowerOn, driver.PowerPaused, driver.PowerOff} {
		spec := withPower(e.spec(t, "delete-me"), power)
		s := e.reach(t, spec, stateOf(power))
		must(t, "Delete with the right ID", e.d.Delete(t.Context(), driver.Target{UID: spec.UID, ID: s.ID}, false))
		e.gone(t, e.d, spec.UID)
	}
}

func stateOf(p driver.Power) driver.State {
	switch p {
	case driver.PowerOff:
		return driver.StateStopped
	case driver.PowerPaused:
		return driver.StatePaused
	case driver.PowerOn:
	}
	return driver.StateRunning
}

func testDeleteFromTwoCallers(t *testing.T, e *env) {
	spec := e.spec(t, "delete-twice")
	e.reach(t, spec, driver.StateRunning)
	other := e.open(t, e.cluster)
	inParallel(6, func(i int) {
		d := []driver.Driver{e.d, other}[i%2]
		if err := d.Delete(t.Context(), spec.Target, false); err != nil && final(err) {
			t.Errorf("Delete: got the final error %v", err)
		}
	})
	e.gone(t, other, spec.UID)
}

// testDeleteWhileCreating checks that whichever call comes last wins, and that a Delete
// that follows leaves nothing.
func testDeleteWhileCreating(t *testing.T, e *env) {
	spec := e.spec(t, "torn")
	inParallel(6, func(i int) {
		if i%2 == 0 {
			_, _ = e.d.Ensure(t.Context(), spec)
			return
		}
		_ = e.d.Delete(t.Context(), spec.Target, false)
	})
	if all := list(t, e.d, spec.UID); len(all) > 1 {
		t.Errorf("got %s, want one server at most", describe(all...))
	}
	e.gone(t, e.d, spec.UID)
}

// testRetain checks that a released server stays on and belongs to no UID.
func testRetain(t *testing.T, e *env) {
	need(t, e.Hands.Remove != nil, "Hands.Remove")
	spec := e.spec(t, "kept")
	s := e.reach(t, spec, driver.StateRunning)
	must(t, "Release", e.d.Delete(t.Context(), driver.Target{UID: spec.UID, ID: s.ID}, true))

	for _, retain := range []bool{true, false} {
		wantKind(t, "Delete of a released server", e.d.Delete(t.Context(), driver.Target{UID: spec.UID}, retain), driver.ErrNotFound)
		wantKind(t, "Delete of a released server by ID", e.d.Delete(t.Context(), driver.Target{UID: spec.UID, ID: s.ID}, retain), driver.ErrNotFound)
	}
	checkRetained(t, e.d, spec.UID, s)

	// Its UID is free again, as for a server that was removed.
	next := e.reach(t, spec, driver.StateRunning)
	if next.ID == s.ID {
		t.Errorf("Ensure took the released %s back", describe(next))
	}
	e.gone(t, e.d, spec.UID)
	checkRetained(t, e.d, spec.UID, s)
}

// checkRetained checks that the complete list shows a released server as such, still on.
func checkRetained(t *testing.T, d driver.Driver, uid types.UID, was driver.Server) {
	t.Helper()
	kept := 0
	for _, s := range list(t, d) {
		if s.ID != was.ID {
			t.Errorf("besides the released server there is %s", describe(s))
			continue
		}
		kept++
		sameRun(t, s, was)
		if !s.Retained {
			t.Errorf("the released server is not marked: %s", describe(s))
		}
	}
	if kept != 1 {
		t.Errorf("the complete list shows the released server %d times, want once", kept)
	}
	for _, s := range list(t, d, uid) {
		if !s.Retained {
			t.Errorf("List by UID still shows %s, want no server of that UID", describe(s))
		}
	}
}
