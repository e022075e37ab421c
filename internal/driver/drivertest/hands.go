// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"cmp"
	"fmt"
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

func testKilledByHand(t *testing.T, e *env) {
	need(t, e.Hands.Kill != nil, "Hands.Kill")
	spec := e.spec(t, "killed")
	first := e.reach(t, spec, driver.StateRunning)
	e.Hands.Kill(t, first)
	s := e.seen(t, spec.UID, "it stopped", isIn(driver.StateStopped))
	if s.Exit == nil || s.Exit.Code == 0 || s.Exit.At.IsZero() {
		t.Errorf("killed it is %s, want an exit code other than 0 and a time", describe(s))
	}
	e.startsAgain(t, spec, first)
}

func testStoppedByHand(t *testing.T, e *env) {
	need(t, e.Hands.Stop != nil, "Hands.Stop")
	spec := e.spec(t, "stopped")
	first := e.reach(t, spec, driver.StateRunning)
	e.Hands.Stop(t, first)
	s := e.seen(t, spec.UID, "it stopped", isIn(driver.StateStopped))
	if s.Exit == nil || s.Exit.Code != 0 {
		t.Errorf("stopped by hand it is %s, want exit code 0", describe(s))
	}
	e.startsAgain(t, spec, first)
}

// startsAgain checks that the same server starts, in a new run.
func (e *env) startsAgain(t *testing.T, spec driver.ServerSpec, first driver.Server) {
	t.Helper()
	again := e.reach(t, spec, driver.StateRunning)
	if again.ID != first.ID || again.Run == first.Run {
		t.Errorf("started again it is %s, want the same ID and another Run than %s", describe(again), describe(first))
	}
}

func testStartedByHand(t *testing.T, e *env) {
	need(t, e.Hands.Start != nil, "Hands.Start")
	spec := e.spec(t, "started")
	first := e.reach(t, spec, driver.StateRunning)
	off := e.reach(t, e.off(spec), driver.StateStopped)
	e.Hands.Start(t, off)
	s := e.seen(t, spec.UID, "it running", isIn(driver.StateRunning))
	if s.Run == first.Run || s.Exit != nil {
		t.Errorf("started by hand it is %s, want another Run than %s and no Exit", describe(s), describe(first))
	}
	sameRun(t, e.reach(t, spec, driver.StateRunning), s)
	e.reach(t, e.off(spec), driver.StateStopped)
}

func testPausedByHand(t *testing.T, e *env) {
	need(t, e.Hands.Pause != nil, "Hands.Pause")
	spec := e.spec(t, "paused")
	first := e.reach(t, spec, driver.StateRunning)
	e.Hands.Pause(t, first)
	e.seen(t, spec.UID, "it paused", isIn(driver.StatePaused))
	sameRun(t, e.reach(t, spec, driver.StateRunning), first)
}

func testRemovedByHand(t *testing.T, e *env) {
	need(t, e.Hands.Remove != nil, "Hands.Remove")
	spec := e.spec(t, "removed")
	first := e.reach(t, spec, driver.StateRunning)
	e.Hands.Remove(t, first)
	e.until(t, "List to miss it", func() error {
		if all := list(t, e.d, spec.UID); len(all) > 0 {
			return fmt.Errorf("it shows %s", describe(all...))
		}
		return nil
	})
	wantKind(t, "Delete of what was removed by hand", e.d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound)
	again := e.reach(t, spec, driver.StateRunning)
	if again.ID == first.ID || again.Run == first.Run {
		t.Errorf("made again it is %s, want another ID and Run than %s", describe(again), describe(first))
	}
}

// testEndsByItself checks that the end of a guest is reported as it was, and that the
// engine's own restarter does what the policy requires and no more.
func testEndsByItself(t *testing.T, e *env) {
	need(t, e.Hands.Exit != nil, "Hands.Exit")
	fails := cmp.Or(e.FailCode, 3)
	for _, c := range []struct {
		policy driver.RestartPolicy
		code   int
		starts bool
	}{
		{driver.RestartNever, 0, false},
		{driver.RestartNever, fails, false},
		{driver.RestartOnFailure, 0, false},
		{driver.RestartOnFailure, fails, true},
		{driver.RestartAlways, 0, true},
		{driver.RestartAlways, fails, true},
	} {
		t.Run(fmt.Sprintf("%s with code %d", c.policy, c.code), func(t *testing.T) {
			spec := e.spec(t, "ends")
			spec.RestartPolicy = c.policy
			s := e.reach(t, spec, driver.StateRunning)
			e.Hands.Exit(t, s, c.code)
			if c.starts && e.Restarts {
				e.seen(t, spec.UID, "that the engine started it again", func(now driver.Server) bool {
					return now.State == driver.StateRunning && now.Run != s.Run
				})
				return
			}
			end := e.seen(t, spec.UID, "it stopped", isIn(driver.StateStopped))
			if end.Exit == nil || end.Exit.Code != c.code {
				t.Errorf("it is %s, want exit code %d", describe(end), c.code)
			}
		})
	}
}
