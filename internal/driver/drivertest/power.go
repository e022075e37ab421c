// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/test/assert"
)

func testStopAndStart(t *testing.T, e *env) {
	spec := e.newSpec(t, "on-off-on")
	first := e.ensureState(t, spec, driver.StateRunning)
	off := e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
	assert.True(t, off.ID == first.ID && off.Exit != nil && off.Exit.Code == 0 && !off.Exit.At.IsZero(),
		"after the stop: %s, want the same server with exit code 0 and a time", describeServers(off))
	wantSameRun(t, e.ensureState(t, e.stopSpec(spec), driver.StateStopped), off)
	wantSameRun(t, listOne(t, e.driver, spec.UID), off)

	second := e.ensureState(t, spec, driver.StateRunning)
	assert.True(t, second.ID == first.ID && second.Run != first.Run && second.Run != "",
		"after the start: %s, want the same ID and another Run than %s", describeServers(second), describeServers(first))
	assert.True(t, second.Exit == nil && !second.StartedAt.Before(first.StartedAt),
		"after the start Exit is %+v and StartedAt %v, before the stop it was %v", second.Exit, second.StartedAt, first.StartedAt)
}

// testStopForced checks that a stop is forced once StopBy has passed, and not before, if the
// guest ignores the request.
func testStopForced(t *testing.T, e *env) {
	spec, first := e.startStubborn(t, "stubborn")
	spec = e.forceSoon(withPower(spec, driver.PowerOff))
	off := e.ensureUntil(t, e.driver, spec, string(driver.StateStopped), func(s driver.Server) bool {
		assert.Require(t, !e.clock.Now().Before(spec.StopBy) || (s.State == driver.StateStopping && s.Run == first.Run),
			"before StopBy: %s, want the state %s", describeServers(s), driver.StateStopping)
		return s.State == driver.StateStopped
	})
	assert.True(t, off.Exit != nil && off.Exit.Code != 0, "after the forced stop: %s, want an exit code other than 0", describeServers(off))
}

func testStopWhilePaused(t *testing.T, e *env) {
	spec := e.newSpec(t, "paused-then-off")
	s := e.ensureState(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	stopped := e.ensureState(t, e.forceSoon(withPower(spec, driver.PowerOff)), driver.StateStopped)
	assert.True(t, stopped.ID == s.ID && stopped.Exit != nil, "after the stop: %s, want the same server with an Exit", describeServers(stopped))
}

func testPauseAndResume(t *testing.T, e *env) {
	spec := e.newSpec(t, "frozen")
	first := e.ensureState(t, spec, driver.StateRunning)
	pause := withPower(spec, driver.PowerPaused)
	paused := e.ensureState(t, pause, driver.StatePaused)
	wantSameRun(t, e.ensureState(t, pause, driver.StatePaused), paused)
	wantSameRun(t, e.waitForServer(t, spec.UID, "a paused server", inState(driver.StatePaused)), paused)
	assert.True(t, paused.ID == first.ID && paused.Run == first.Run, "pausing changed the run: %s became %s", describeServers(first), describeServers(paused))
	wantSameRun(t, e.ensureState(t, spec, driver.StateRunning), first)
}

func testRestartOnce(t *testing.T, e *env) {
	spec := e.newSpec(t, "restarted")
	first := e.ensureState(t, spec, driver.StateRunning)
	restart := e.restartSpec(spec, first.Run, e.fromNow(time.Hour))
	second := e.ensureNewRun(t, restart, first.Run)
	for range 3 {
		wantSameRun(t, ensureOnce(t, e.driver, restart), second)
	}
	// RestartRun names a run that is over, so that it has no effect after a stop and a start either.
	e.ensureState(t, e.stopSpec(restart), driver.StateStopped)
	third := e.ensureState(t, restart, driver.StateRunning)
	wantSameRun(t, e.ensureState(t, restart, driver.StateRunning), third)
	assert.True(t, third.Run != first.Run && third.Run != second.Run, "the runs are %q, %q, %q, want three different ones", first.Run, second.Run, third.Run)
}

func testRestartOnceFromTwoCallers(t *testing.T, e *env) {
	spec := e.newSpec(t, "restarted-by-two")
	first := e.ensureState(t, spec, driver.StateRunning)
	other := e.openDriver(t, e.cluster)
	restart := e.restartSpec(spec, first.Run, e.fromNow(time.Hour))
	runs := newStringSet()
	runParallel(8, func(i int) {
		d := []driver.Driver{e.driver, other}[i%2]
		for range 3 {
			s, err := d.Ensure(t.Context(), restart)
			assert.True(t, err == nil || !isFinal(err), "Ensure: got the final error %v", err)
			runs.add(s.Run)
		}
	})
	runs.add(e.ensureNewRun(t, restart, first.Run).Run)
	all := slices.DeleteFunc(runs.values(), func(run string) bool { return run == first.Run })
	assert.True(t, len(all) == 1, "the restart of the run %q made the runs %v, want exactly one", first.Run, all)
}

func testRestartForced(t *testing.T, e *env) {
	spec, first := e.startStubborn(t, "stubborn-restart")
	restart := e.restartSpec(spec, first.Run, e.fromNow(stopGrace))
	e.ensureNewRun(t, restart, first.Run)
	assert.True(t, !e.clock.Now().Before(restart.StopBy), "the run was forced to end before StopBy")
}

func testRestartWhilePaused(t *testing.T, e *env) {
	spec := e.newSpec(t, "paused-restart")
	first := e.ensureState(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	e.ensureNewRun(t, e.restartSpec(spec, first.Run, e.fromNow(stopGrace)), first.Run)
}

// testResize checks that a new size applies at once or, without ResizesLive, is in Pending until a restart.
func testResize(t *testing.T, e *env) {
	spec := e.newSpec(t, "resized")
	first := e.ensureState(t, spec, driver.StateRunning)
	for _, factor := range []int64{2, 1} {
		sized := spec
		sized.CPUMilli, sized.MemoryBytes = spec.CPUMilli*factor, spec.MemoryBytes*factor
		s := e.ensureState(t, sized, driver.StateRunning)
		if e.ResizesLive {
			wantSameRun(t, s, first)
		} else if factor != 1 && len(s.Pending) == 0 {
			t.Errorf("Pending is empty although the size has to wait for a restart")
		}
		if !e.ResizesLive {
			s = e.ensureNewRun(t, e.restartSpec(sized, s.Run, e.fromNow(time.Hour)), s.Run)
		}
		wantSize(t, s, sized)
		wantSize(t, listOne(t, e.driver, spec.UID), sized)
	}
}

func wantSize(t *testing.T, s driver.Server, spec driver.ServerSpec) {
	t.Helper()
	assert.True(t, s.Applied.CPUMilli == spec.CPUMilli && s.Applied.MemoryBytes == spec.MemoryBytes && len(s.Pending) == 0,
		"the server has %+v with %v pending, want cpu %dm, memory %d and nothing pending", s.Applied, s.Pending, spec.CPUMilli, spec.MemoryBytes)
}

// testChangeImage checks that a new image is in Pending until the next restart or, with
// KeepsImage, is refused.
func testChangeImage(t *testing.T, e *env) {
	streams.Require(t, e.OtherImage != "", "OtherImage")
	spec := e.newSpec(t, "reimaged")
	first := e.ensureState(t, spec, driver.StateRunning)
	spec.Image.Source = e.OtherImage
	waiting := e.ensureState(t, spec, driver.StateRunning)
	wantSameRun(t, waiting, first)
	e.checkImageRefusal(t, waiting)
	assert.True(t, slices.Contains(waiting.Pending, "image") != e.KeepsImage, "Pending is %v, want image in it: %v", waiting.Pending, !e.KeepsImage)
	second := e.ensureNewRun(t, e.restartSpec(spec, first.Run, e.fromNow(time.Hour)), first.Run)
	e.checkImageRefusal(t, second)
	assert.True(t, len(second.Pending) == 0, "after the restart %v is still pending", second.Pending)
	all := listServers(t, e.driver)
	assert.True(t, len(all) == 1, "the restart left %s, want one server", describeServers(all...))
}

// checkImageRefusal checks that Refused names the new image if the driver keeps images, and is
// nil otherwise.
func (e *env) checkImageRefusal(t *testing.T, s driver.Server) {
	t.Helper()
	switch r := s.Refused; {
	case !e.KeepsImage && r != nil:
		t.Errorf("Refused is %+v, want nil", *r)
	case e.KeepsImage && (r == nil || r.Field != "image" || r.Reason != driver.ReasonImageImmutable || !strings.Contains(r.Message, e.OtherImage)):
		t.Errorf("Refused is %+v, want the field image and the reason %s", r, driver.ReasonImageImmutable)
	}
}

func testChangeWhileStopped(t *testing.T, e *env) {
	streams.Require(t, e.OtherImage != "", "OtherImage")
	spec := e.newSpec(t, "changed-while-off")
	first := e.ensureState(t, spec, driver.StateRunning)
	e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
	spec.Image.Source = e.OtherImage
	spec.MemoryBytes *= 2
	s := e.ensureNewRun(t, spec, first.Run)
	wantSize(t, s, spec)
	e.checkImageRefusal(t, s)
}

// testCancelled checks that a call whose context has ended returns an error.
func testCancelled(t *testing.T, e *env) {
	spec := e.newSpec(t, "cancelled")
	ctx, cancel := cancelledContext(t)
	defer cancel()
	_, err := e.driver.Ensure(ctx, spec)
	wantContextError(t, "Ensure", err)
	servers, err := e.driver.List(ctx)
	assert.True(t, err != nil, "List: got %s and no error", describeServers(servers...))
	err = e.driver.Delete(ctx, spec.Target, false)
	wantContextError(t, "Delete", err)
	assert.True(t, !errors.Is(err, driver.ErrNotFound), "Delete: got %v, for which the controller would remove the finalizer", err)
	_, err = e.driver.Usage(ctx, spec.UID)
	wantContextError(t, "Usage", err)
	e.ensureState(t, spec, driver.StateRunning)
}

func wantContextError(t *testing.T, subject string, err error) {
	t.Helper()
	assert.True(t, err != nil, "%s with a cancelled context: got no error", subject)
}

// testCancelledMidway checks that Ensure completes a creation or restart that an earlier call
// was interrupted in.
func testCancelledMidway(t *testing.T, e *env) {
	spec := e.newSpec(t, "interrupted")
	for i := range 6 {
		e.interruptEnsure(t, spec, time.Duration(i*i)*time.Millisecond)
	}
	s := e.ensureState(t, spec, driver.StateRunning)
	for i := range 6 {
		e.interruptEnsure(t, e.restartSpec(spec, s.Run, e.fromNow(time.Hour)), time.Duration(i*i)*time.Millisecond)
	}
	e.ensureNewRun(t, e.restartSpec(spec, s.Run, e.fromNow(time.Hour)), s.Run)
	listOne(t, e.driver, spec.UID)
}
