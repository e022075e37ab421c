// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"cmp"
	"fmt"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/test/assert"
)

func testKilledByHand(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Kill != nil, "OutOfBand.Kill")
	spec := e.newSpec(t, "killed")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.OutOfBand.Kill(t, first)
	s := e.waitForServer(t, spec.UID, "a stopped server", inState(driver.StateStopped))
	assert.True(t, s.Exit != nil && s.Exit.Code != 0 && !s.Exit.At.IsZero(), "after the kill: %s, want an exit code other than 0 and a time", describeServers(s))
	e.checkStartsAgain(t, spec, first)
}

func testStoppedByHand(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Stop != nil, "OutOfBand.Stop")
	spec := e.newSpec(t, "stopped")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.OutOfBand.Stop(t, first)
	s := e.waitForServer(t, spec.UID, "a stopped server", inState(driver.StateStopped))
	assert.True(t, s.Exit != nil && s.Exit.Code == 0, "after the stop by hand: %s, want exit code 0", describeServers(s))
	e.checkStartsAgain(t, spec, first)
}

// checkStartsAgain checks that the same server starts, in a new run.
func (e *env) checkStartsAgain(t *testing.T, spec driver.ServerSpec, first driver.Server) {
	t.Helper()
	again := e.ensureState(t, spec, driver.StateRunning)
	assert.True(t, again.ID == first.ID && again.Run != first.Run,
		"after the start: %s, want the same ID and another Run than %s", describeServers(again), describeServers(first))
}

func testStartedByHand(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Start != nil, "OutOfBand.Start")
	spec := e.newSpec(t, "started")
	first := e.ensureState(t, spec, driver.StateRunning)
	off := e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
	e.OutOfBand.Start(t, off)
	s := e.waitForServer(t, spec.UID, "a running server", inState(driver.StateRunning))
	assert.True(t, s.Run != first.Run && s.Exit == nil, "after the start by hand: %s, want another Run than %s and no Exit", describeServers(s), describeServers(first))
	wantSameRun(t, e.ensureState(t, spec, driver.StateRunning), s)
	e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
}

func testPausedByHand(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Pause != nil, "OutOfBand.Pause")
	spec := e.newSpec(t, "paused")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.OutOfBand.Pause(t, first)
	e.waitForServer(t, spec.UID, "a paused server", inState(driver.StatePaused))
	wantSameRun(t, e.ensureState(t, spec, driver.StateRunning), first)
}

func testRemovedByHand(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Remove != nil, "OutOfBand.Remove")
	spec := e.newSpec(t, "removed")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.OutOfBand.Remove(t, first)
	assert.Eventually(t, "List to miss the server", func(testing.TB) error {
		all := listServers(t, e.driver, spec.UID)
		return assert.ErrorUnless(len(all) == 0, "List shows %s", describeServers(all...))
	})
	wantErrorKind(t, "Delete of a server that was removed by hand", driver.ErrNotFound, func() error { return e.driver.Delete(t.Context(), spec.Target, false) })
	again := e.ensureState(t, spec, driver.StateRunning)
	e.checkRecreated(t, again, first)
}

// testEndsByItself checks that a guest's exit code is reported and that an engine that
// restarts servers follows the restart policy.
func testEndsByItself(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.Exit != nil, "OutOfBand.Exit")
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
			spec := e.newSpec(t, "ends")
			spec.RestartPolicy = c.policy
			s := e.ensureState(t, spec, driver.StateRunning)
			e.OutOfBand.Exit(t, s, c.code)
			if c.starts && e.Restarts {
				e.waitForServer(t, spec.UID, "a new run that the engine began by itself", func(now driver.Server) bool {
					return now.State == driver.StateRunning && now.Run != s.Run
				})
				return
			}
			end := e.waitForServer(t, spec.UID, "a stopped server", inState(driver.StateStopped))
			assert.True(t, end.Exit != nil && end.Exit.Code == c.code, "the server is %s, want exit code %d", describeServers(end), c.code)
		})
	}
}
