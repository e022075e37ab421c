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
)

func testStopAndStart(t *testing.T, e *env) {
	spec := e.spec(t, "on-off-on")
	first := e.reach(t, spec, driver.StateRunning)
	off := e.reach(t, e.off(spec), driver.StateStopped)
	if off.ID != first.ID || off.Exit == nil || off.Exit.Code != 0 || off.Exit.At.IsZero() {
		t.Errorf("stopped it is %s, want the same server with exit code 0 and a time", describe(off))
	}
	sameRun(t, e.reach(t, e.off(spec), driver.StateStopped), off)
	sameRun(t, one(t, e.d, spec.UID), off)

	second := e.reach(t, spec, driver.StateRunning)
	if second.ID != first.ID || second.Run == first.Run || second.Run == "" {
		t.Errorf("started again it is %s, want the same ID and another Run than %s", describe(second), describe(first))
	}
	if second.Exit != nil || second.StartedAt.Before(first.StartedAt) {
		t.Errorf("started again it has Exit %+v and began at %v, before at %v", second.Exit, second.StartedAt, first.StartedAt)
	}
}

// testStopForced checks that a guest that ignores the request is stopped once StopBy has
// passed, and not before.
func testStopForced(t *testing.T, e *env) {
	spec, first := e.stubborn(t, "stubborn")
	spec = withPower(spec, driver.PowerOff)
	spec.StopBy = e.in(2 * time.Second)
	for e.clock.Now().Before(spec.StopBy.Add(-500 * time.Millisecond)) {
		s, err := e.d.Ensure(t.Context(), spec)
		must(t, "Ensure", err)
		if e.clock.Now().Before(spec.StopBy) && (s.State != driver.StateStopping || s.Run != first.Run) {
			t.Fatalf("before StopBy it is %s, want it %s", describe(s), driver.StateStopping)
		}
		e.clock.Sleep(100 * time.Millisecond)
	}
	off := e.reach(t, spec, driver.StateStopped)
	if e.clock.Now().Before(spec.StopBy) {
		t.Error("it was forced before StopBy")
	}
	if off.Exit == nil || off.Exit.Code == 0 {
		t.Errorf("forced it is %s, want an exit code other than 0", describe(off))
	}
}

func testStopWhilePaused(t *testing.T, e *env) {
	spec := e.spec(t, "paused-then-off")
	s := e.reach(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	off := withPower(spec, driver.PowerOff)
	off.StopBy = e.in(2 * time.Second)
	stopped := e.reach(t, off, driver.StateStopped)
	if stopped.ID != s.ID || stopped.Exit == nil {
		t.Errorf("it is %s, want the same server, stopped, with its Exit", describe(stopped))
	}
}

func testPauseAndResume(t *testing.T, e *env) {
	spec := e.spec(t, "frozen")
	first := e.reach(t, spec, driver.StateRunning)
	pause := withPower(spec, driver.PowerPaused)
	paused := e.reach(t, pause, driver.StatePaused)
	sameRun(t, e.reach(t, pause, driver.StatePaused), paused)
	sameRun(t, e.seen(t, spec.UID, "it paused", isIn(driver.StatePaused)), paused)
	if paused.ID != first.ID || paused.Run != first.Run {
		t.Errorf("pausing changed the run: %s became %s", describe(first), describe(paused))
	}
	sameRun(t, e.reach(t, spec, driver.StateRunning), first)
}

func isIn(state driver.State) func(driver.Server) bool {
	return func(s driver.Server) bool { return s.State == state }
}

func testRestartOnce(t *testing.T, e *env) {
	spec := e.spec(t, "restarted")
	first := e.reach(t, spec, driver.StateRunning)
	restart := e.restart(spec, first.Run, e.in(time.Hour))
	second := e.reachRunOtherThan(t, restart, first.Run)
	for range 3 {
		s, err := e.d.Ensure(t.Context(), restart)
		must(t, "Ensure of a restart that is done", err)
		sameRun(t, s, second)
	}
	// A run that is over stays over, whatever else happens.
	e.reach(t, e.off(restart), driver.StateStopped)
	third := e.reach(t, restart, driver.StateRunning)
	sameRun(t, e.reach(t, restart, driver.StateRunning), third)
	if third.Run == first.Run || third.Run == second.Run {
		t.Errorf("the runs are %q, %q, %q, want three different ones", first.Run, second.Run, third.Run)
	}
}

func testRestartOnceFromTwoCallers(t *testing.T, e *env) {
	spec := e.spec(t, "restarted-by-two")
	first := e.reach(t, spec, driver.StateRunning)
	other := e.open(t, e.cluster)
	restart := e.restart(spec, first.Run, e.in(time.Hour))
	runs := newSet()
	inParallel(8, func(i int) {
		d := []driver.Driver{e.d, other}[i%2]
		for range 3 {
			s, err := d.Ensure(t.Context(), restart)
			if err != nil && final(err) {
				t.Errorf("Ensure: got the final error %v", err)
			}
			runs.add(s.Run)
		}
	})
	runs.add(e.reachRunOtherThan(t, restart, first.Run).Run)
	all := slices.DeleteFunc(runs.list(), func(run string) bool { return run == first.Run })
	if len(all) != 1 {
		t.Errorf("after the run %q came the runs %v, want exactly one", first.Run, all)
	}
}

func testRestartForced(t *testing.T, e *env) {
	spec, first := e.stubborn(t, "stubborn-restart")
	restart := e.restart(spec, first.Run, e.in(1500*time.Millisecond))
	e.reachRunOtherThan(t, restart, first.Run)
	if e.clock.Now().Before(restart.StopBy) {
		t.Error("the run was forced to end before StopBy")
	}
}

func testRestartWhilePaused(t *testing.T, e *env) {
	spec := e.spec(t, "paused-restart")
	first := e.reach(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	e.reachRunOtherThan(t, e.restart(spec, first.Run, e.in(2*time.Second)), first.Run)
}

// testResize checks that a new size applies at once, or is in Pending until a restart.
func testResize(t *testing.T, e *env) {
	spec := e.spec(t, "resized")
	first := e.reach(t, spec, driver.StateRunning)
	for _, factor := range []int64{2, 1} {
		sized := spec
		sized.CPUMilli, sized.MemoryBytes = spec.CPUMilli*factor, spec.MemoryBytes*factor
		s := e.reach(t, sized, driver.StateRunning)
		if e.ResizesLive {
			sameRun(t, s, first)
		} else if factor != 1 && len(s.Pending) == 0 {
			t.Errorf("Pending is empty although the size has to wait for a restart")
		}
		if !e.ResizesLive {
			s = e.reachRunOtherThan(t, e.restart(sized, s.Run, e.in(time.Hour)), s.Run)
		}
		checkSize(t, s, sized)
		checkSize(t, one(t, e.d, spec.UID), sized)
	}
}

func checkSize(t *testing.T, s driver.Server, spec driver.ServerSpec) {
	t.Helper()
	if s.Applied.CPUMilli != spec.CPUMilli || s.Applied.MemoryBytes != spec.MemoryBytes || len(s.Pending) != 0 {
		t.Errorf("it has %+v and %v pending, want cpu %dm, memory %d and nothing", s.Applied, s.Pending, spec.CPUMilli, spec.MemoryBytes)
	}
}

// testChangeImage checks that a new image waits for the next restart, or is refused for good.
func testChangeImage(t *testing.T, e *env) {
	need(t, e.OtherImage != "", "OtherImage")
	spec := e.spec(t, "reimaged")
	first := e.reach(t, spec, driver.StateRunning)
	spec.Image.Source = e.OtherImage
	waiting := e.reach(t, spec, driver.StateRunning)
	sameRun(t, waiting, first)
	e.checkRefused(t, waiting)
	if slices.Contains(waiting.Pending, "image") == e.KeepsImage {
		t.Errorf("Pending is %v, want image in it: %v", waiting.Pending, !e.KeepsImage)
	}
	second := e.reachRunOtherThan(t, e.restart(spec, first.Run, e.in(time.Hour)), first.Run)
	e.checkRefused(t, second)
	if len(second.Pending) != 0 {
		t.Errorf("after the restart %v still waits", second.Pending)
	}
	if all := list(t, e.d); len(all) != 1 {
		t.Errorf("the restart left %s, want one server", describe(all...))
	}
}

// checkRefused checks that another image is refused if images cannot change, and that
// nothing is refused otherwise.
func (e *env) checkRefused(t *testing.T, s driver.Server) {
	t.Helper()
	switch r := s.Refused; {
	case !e.KeepsImage && r != nil:
		t.Errorf("refused is %+v, want nothing", *r)
	case e.KeepsImage && (r == nil || r.Field != "image" || r.Reason != driver.ReasonImageImmutable || !strings.Contains(r.Message, e.OtherImage)):
		t.Errorf("refused is %+v, want image, by %s", r, driver.ReasonImageImmutable)
	}
}

func testChangeWhileStopped(t *testing.T, e *env) {
	need(t, e.OtherImage != "", "OtherImage")
	spec := e.spec(t, "changed-while-off")
	first := e.reach(t, spec, driver.StateRunning)
	e.reach(t, e.off(spec), driver.StateStopped)
	spec.Image.Source = e.OtherImage
	spec.MemoryBytes *= 2
	s := e.reachRunOtherThan(t, spec, first.Run)
	checkSize(t, s, spec)
	e.checkRefused(t, s)
}

// testCancelled checks that a call whose context has ended returns that error at once.
func testCancelled(t *testing.T, e *env) {
	spec := e.spec(t, "cancelled")
	ctx, cancel := contextOver(t)
	defer cancel()
	began := e.clock.Now()
	_, err := e.d.Ensure(ctx, spec)
	wantError(t, "Ensure", err)
	if servers, err := e.d.List(ctx); err == nil {
		t.Errorf("List: got %s and no error", describe(servers...))
	}
	err = e.d.Delete(ctx, spec.Target, false)
	wantError(t, "Delete", err)
	if errors.Is(err, driver.ErrNotFound) {
		t.Errorf("Delete: got %v, which would let the finalizer go", err)
	}
	_, err = e.d.Usage(ctx, spec.UID)
	wantError(t, "Usage", err)
	if took := e.clock.Since(began); took > 5*time.Second {
		t.Errorf("four cancelled calls took %v", took)
	}
	e.reach(t, spec, driver.StateRunning)
}

func wantError(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s with a context that is over: got no error", what)
	}
}

// testCancelledMidway checks that the next call can complete whatever an interrupted one
// left.
func testCancelledMidway(t *testing.T, e *env) {
	spec := e.spec(t, "interrupted")
	for i := range 6 {
		e.interrupt(t, spec, time.Duration(i*i)*time.Millisecond)
	}
	s := e.reach(t, spec, driver.StateRunning)
	for i := range 6 {
		e.interrupt(t, e.restart(spec, s.Run, e.in(time.Hour)), time.Duration(i*i)*time.Millisecond)
	}
	e.reachRunOtherThan(t, e.restart(spec, s.Run, e.in(time.Hour)), s.Run)
	one(t, e.d, spec.UID)
}
