// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"slices"
	"testing"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// wantGrowing checks that each wait but the first is longer than the one before.
func wantGrowing(t *testing.T, waits []time.Duration) {
	t.Helper()
	for n := 2; n < len(waits); n++ {
		if waits[n] <= waits[n-1] {
			t.Errorf("the waits are %v: they do not grow", waits)
			return
		}
	}
}

func (g *rig) killed() fake.Exit { return fake.Exit{Code: 137, At: g.clock.Now()} }

// ephemeral removes the server between two runs, as the driver of an ephemeral VM does.
func (g *rig) ephemeral(fails func() bool) {
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		s := g.server()
		if s.ID != "" && s.State == driver.StateStopped && spec.Power != driver.PowerOff {
			if len(spec.Objects) == 0 || spec.Objects[0].Nonce != s.Run {
				return driver.Server{}, &driver.RecordFirstError{Objects: []driver.Object{{Kind: "Pod", Name: "vm", Nonce: s.Run}}}
			}
			g.memory.Remove("uid-1")
			spec.ID = ""
			if fails() {
				return driver.Server{}, driver.Errorf(driver.ErrRetry, "quota")
			}
			s, err := g.engine.Driver.Ensure(g.t.Context(), spec)
			s.Objects = spec.Objects
			return s, err
		}
		s, err := live()
		s.Objects = spec.Objects
		return s, err
	}
}

// TestStartAfterAStopThatOthersForced checks that a VM which a user has stopped can be started,
// although others have ended its run as well.
func TestStartAfterAStopThatOthersForced(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.clock.Step(time.Minute)
	g.setAction(api.ActionStopped)
	g.reconcile()
	g.engine.disrupts.Store(true)
	g.endAs(g.killed())
	g.reconcile()
	g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
	g.setAction(api.ActionActive)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestDrainOfAFailedRun checks that a guest which has failed finally, before it was seen to run,
// stays failed when it is drained later.
func TestDrainOfAFailedRun(t *testing.T) {
	g := newRunning(t, fake.Options{BootTime: time.Hour}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.clock.Step(time.Minute)
	g.reconcile()
	g.endAs(fake.Exit{Code: 1, At: g.clock.Now()})
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonExited)
	g.clock.Step(time.Hour)
	g.reconcile()
	run := g.server().Run
	g.engine.disrupts.Store(true)
	assert.NoError(t, g.memory.Edit("uid-1", func(*fake.Record) {}))
	g.eventually("the drain is seen", func() bool { return g.server().Disruption != "" })
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonExited)
	assert.True(t, g.server().Run == run, "the failed guest was started again by a drain")
}

// TestStartThatFailsLate checks the delays of a server whose guest starts although the call fails.
func TestStartThatFailsLate(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		s, err := live()
		if err == nil {
			err = driver.Errorf(driver.ErrRetry, "the disk cannot grow")
		}
		return s, err
	}
	var waits []time.Duration
	for range 6 {
		waits = append(waits, g.crashAndRestart(0))
	}
	wantGrowing(t, waits)
}

// TestUpdateThatFailsInEachRun checks that a failed update does not reset the count of short runs.
func TestUpdateThatFailsInEachRun(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		if g.server().State == driver.StateRunning {
			return driver.Server{}, driver.Errorf(driver.ErrRetry, "boom")
		}
		return live()
	}
	g.engine.needs.Store(true)
	var waits []time.Duration
	for range 6 {
		waits = append(waits, g.crashAndRestart(0))
		g.eventually("asks for update", func() bool { return g.server().NeedsEnsure })
		g.reconcile()
	}
	wantGrowing(t, waits)
}

// TestUpdateOfANewSpecThatFails checks that a failed update waits for its next try, also if the spec has
// changed in a run that counts.
func TestUpdateOfANewSpecThatFails(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.crashAndRestart(0)
	g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "boom"))
	g.edit(func(s *api.VirtualMachineSpec) { s.ShutdownGracePeriodSeconds = new(int64(77)) })
	calls := g.engine.calls
	g.reconcile()
	g.reconcile()
	got := g.engine.calls - calls
	assert.True(t, got == 1, "it was tried %d times at once, want 1", got)
}

// TestPauseThatTakesLong checks that a pause that is reported while it is under way does not reset the
// count of short runs.
func TestPauseThatTakesLong(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.setAction(api.ActionPaused)
	g.reconcile()
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		if g.server().State == driver.StateRunning { // a pause: takes long
			err := assert.Poll(t.Context(), "the pause is reported", func() error { // not in the goroutine of the test
				g.clock.Step(progressDelay)
				if reason := g.vm().Status.Reason; reason != api.ReasonUpdating {
					return errors.New(reason)
				}
				return nil
			})
			assert.ReportError(t, err)
			return live()
		}
		spec.Power = driver.PowerOn // starts first, pauses in the next call
		return g.engine.Driver.Ensure(t.Context(), spec)
	}
	var waits []time.Duration
	for range 4 {
		waits = append(waits, g.crashAndRestart(0))
		s := g.server().State
		assert.Require(t, s == driver.StatePaused, "state %s", s)
	}
	wantGrowing(t, waits)
}

// TestStopThatIsTakenBackUnreported checks that a stop is forced after its grace period, and the
// server started again, if the stop was taken back before its status was written.
func TestStopThatIsTakenBackUnreported(t *testing.T) {
	for _, counted := range []bool{false, true} {
		g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm").RestartPolicy(api.RestartNever).GracePeriod(30))
		if counted {
			g.endAs(fake.Exit{Reason: driver.ExitHostShutdown, At: g.clock.Now()})
			g.reconcile()
		}
		g.statusErr = errConflict
		g.setAction(api.ActionStopped)
		g.passes(2)
		g.statusErr = nil
		s := g.server().State
		assert.Require(t, s == driver.StateStopping, "it is %s", s)
		g.setAction(api.ActionActive)
		run := g.server().Run
		took := g.runWhile(func() bool { return g.server().Run == run && g.vm().Status.Phase != api.PhaseFailed }, 10*time.Minute)
		assert.True(t, g.server().Run != run && took <= time.Minute,
			"counted %t: after %v: %s %s %s %+v", counted, took, g.server().State, g.vm().Status.Phase, g.vm().Status.Reason, g.vm().Status.Operation)
	}
}

// TestForcedStopThatIsTakenBack checks that a stop which was taken back before it was forced leads to
// another run, whatever the restart policy.
func TestForcedStopThatIsTakenBack(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm").RestartPolicy(api.RestartNever).GracePeriod(30))
	g.clock.Step(time.Minute)
	g.setAction(api.ActionStopped)
	g.reconcile()
	g.setAction(api.ActionActive)
	run := g.server().Run
	g.runWhile(func() bool { return g.server().Run == run && g.vm().Status.Phase != api.PhaseFailed }, 10*time.Minute)
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestStopsByOthersAfterAShortRun checks that a run that others have ended is followed by another,
// even after a short run.
func TestStopsByOthersAfterAShortRun(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.endAs(fake.Exit{Reason: driver.ExitHostShutdown, At: g.clock.Now()})
	g.reconcile()
	g.stopByOthers()
	g.reconcile()
	g.endAs(g.killed())
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestStopsByOthersWithCodeZero is TestStopsByOthersAfterAShortRun with a guest that ends with code 0.
func TestStopsByOthersWithCodeZero(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.engine.disrupts.Store(true)
	for n := range 3 {
		run := g.server().Run
		g.stopByOthers()
		g.reconcile()
		g.endAs(fake.Exit{At: g.clock.Now()})
		g.runWhile(func() bool { return g.server().Run == run && g.vm().Status.Reason != api.ReasonCompleted }, time.Minute)
		assert.Require(t, g.server().Run != run, "end %d: %s %s", n, g.vm().Status.Phase, g.vm().Status.Reason)
	}
}

// TestFailedStartAfterAStopByOthers checks that a failed start does not change who ended the run
// before.
func TestFailedStartAfterAStopByOthers(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.clock.Step(time.Minute)
	g.reconcile()
	g.engine.disrupts.Store(true)
	run := g.server().Run
	g.stopByOthers()
	g.reconcile()
	g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "boom"))
	g.endAs(fake.Exit{At: g.clock.Now()})
	g.reconcile()
	g.engine.ensure = nil
	g.clock.Step(2 * time.Second)
	g.reconcile()
	assert.True(t, g.server().Run != run, "%s %s", g.vm().Status.Phase, g.vm().Status.Reason)
}

// TestDrainInBackoff checks that the remains that a drain waits for are removed while a start is delayed,
// and that the start remains delayed.
func TestDrainInBackoff(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	for range 8 {
		g.crashAndRestart(0)
	}
	g.crashNow(0)
	g.reconcile()
	calls := g.engine.calls
	g.engine.hasLeftovers.Store(true)
	assert.NoError(t, g.memory.Edit("uid-1", func(*fake.Record) {}))
	g.eventually("the drain is seen", func() bool { return g.server().NeedsEnsure })
	began, run := g.clock.Now(), g.server().Run
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		g.engine.hasLeftovers.Store(false)
		s, err := live()
		_ = g.memory.Edit("uid-1", func(r *fake.Record) { r.Load += 0.01 })
		return s, err
	}
	took := g.runWhile(func() bool { return g.engine.calls == calls }, time.Hour)
	assert.True(t, took <= 0, "the driver was asked to release the pod after %v", took)
	g.eventually("released", func() bool { return !g.server().NeedsEnsure })
	assert.True(t, g.server().Run == run, "started at once")
	g.runWhile(func() bool { return g.server().Run == run }, time.Hour)
	assert.Equal(t, "the next run was after", g.clock.Since(began), 128*time.Second)
}

// TestDrainInBackoffOfEphemeral is TestDrainInBackoff for an ephemeral server, which is then gone or
// has another pod that has never run.
func TestDrainInBackoffOfEphemeral(t *testing.T) {
	for name, gated := range map[string]bool{"gone": false, "gated": true} {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			for range 8 {
				g.crashAndRestart(0)
			}
			g.crashNow(0)
			g.reconcile()
			calls, began, run := g.engine.calls, g.clock.Now(), g.server().Run
			g.engine.hasLeftovers.Store(true)
			assert.NoError(t, g.memory.Edit("uid-1", func(r *fake.Record) { r.Load += 0.01 }))
			g.eventually("the drain is seen", func() bool { return g.server().NeedsEnsure })
			g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
				if !g.engine.hasLeftovers.Load() {
					return live()
				}
				assert.True(t, spec.Power == driver.PowerOff, "it is started at once")
				if len(spec.Objects) == 0 {
					return driver.Server{}, &driver.RecordFirstError{Objects: []driver.Object{{Kind: "Pod", Name: "vm", Nonce: "x"}}}
				}
				g.engine.hasLeftovers.Store(false)
				g.memory.Remove("uid-1")
				if !gated {
					return driver.Server{UID: "uid-1", ID: spec.ID, State: driver.StateRemoving, Objects: spec.Objects}, nil
				}
				spec.ID = ""
				s, err := g.engine.Driver.Ensure(t.Context(), spec)
				s.Objects = spec.Objects
				return s, err
			}
			took := g.runWhile(func() bool { return g.engine.calls == calls }, time.Hour)
			assert.True(t, took <= 0, "the driver was asked to release the pod after %v", took)
			g.eventually("the pod goes", func() bool { return g.server().Run != run })
			g.runWhile(func() bool { return g.server().State != driver.StateRunning }, time.Hour)
			wait := g.clock.Since(began)
			assert.True(t, wait >= 127*time.Second && wait <= 129*time.Second, "the next run was after %v", wait)
		})
	}
}

// TestDrainInHold checks that the remains that a drain waits for are removed soon while a failed start waits.
func TestDrainInHold(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "boom"))
	g.crashNow(0)
	g.runFor(5 * time.Minute)
	g.reconcile()
	g.engine.ensure = nil
	calls := g.engine.calls
	g.engine.hasLeftovers.Store(true)
	assert.NoError(t, g.memory.Edit("uid-1", func(*fake.Record) {}))
	g.eventually("the drain is seen", func() bool { return g.server().NeedsEnsure })
	took := g.runWhile(func() bool { return g.engine.calls == calls }, time.Hour)
	assert.True(t, took <= 5*time.Second, "the driver was asked to release the pod after %v", took)
}

// TestEphemeralCreationFails checks the delays of an ephemeral server whose creation fails after each
// short run.
func TestEphemeralCreationFails(t *testing.T) {
	for name, fail := range map[string]bool{"works": false, "fails": true} {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			g.ephemeral(func() bool { return fail })
			var waits []time.Duration
			for range 6 {
				g.crashNow(0)
				began := g.clock.Now()
				run := g.server().Run
				g.runWhile(func() bool { return g.server().Run == run || g.server().ID == "" }, time.Hour)
				waits = append(waits, g.clock.Since(began).Truncate(time.Second))
			}
			wantGrowing(t, waits)
		})
	}
}

// TestEphemeralStartThatFailsLate checks the delays of an ephemeral server whose guest starts although
// the call fails.
func TestEphemeralStartThatFailsLate(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.ephemeral(func() bool { return false })
	inner := g.engine.ensure
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		s, err := inner(spec, live)
		if err == nil && len(spec.Objects) > 0 {
			err = driver.Errorf(driver.ErrRetry, "the budget cannot be made")
		}
		return s, err
	}
	var waits []time.Duration
	for range 6 {
		g.crashNow(0)
		began, run := g.clock.Now(), g.server().Run
		g.runWhile(func() bool { return g.server().Run == run || g.server().ID == "" }, time.Hour)
		waits = append(waits, g.clock.Since(began).Truncate(time.Second))
	}
	wantGrowing(t, waits)
}

// TestGuestThatEndsFirstInAStop checks that the end of a guest, whose server has yet to stop, is
// waited for.
func TestGuestThatEndsFirstInAStop(t *testing.T) {
	for _, action := range []api.Action{api.ActionActive, api.ActionStopped} {
		g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm"))
		g.clock.Step(time.Minute)
		g.setAction(action)
		g.engine.disrupts.Store(true)
		if action == api.ActionActive {
			g.stopByOthers()
		}
		g.reconcile()
		g.engine.guestEnd.Store(&driver.Exit{Code: 137, At: g.clock.Now()})
		assert.NoError(t, g.memory.Edit("uid-1", func(r *fake.Record) { r.Load = 0.1 }))
		g.eventually("guest ended", func() bool { return g.server().Exit != nil })
		g.engine.ensure = func(driver.ServerSpec, call) (driver.Server, error) { return g.server(), nil }
		g.reconcile()
		g.wantPhase(api.PhaseActive, api.ReasonStopping)
	}
}

// TestRepeatedEvictions checks that the delays grow for a server that its host evicts repeatedly, although
// its runs are longer than those that count as crashes. Neither another controller, nor a driver that
// asks for updates, nor a failed start resets the delays. A run of ten minutes does.
func TestRepeatedEvictions(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.engine.disrupts.Store(true)
	g.engine.evicts.Store(true)
	runAndEvict := func(ran time.Duration) time.Duration {
		t.Helper()
		for began := g.clock.Now(); g.clock.Since(began) < ran; g.clock.Step(10 * time.Second) {
			g.reconcile()
		}
		g.wantPhase(api.PhaseActive, api.ReasonRunning)
		g.endAs(g.killed())
		return g.untilNextRun()
	}
	waits := []time.Duration{runAndEvict(2 * time.Minute)}
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		g.engine.needs.Store(false)
		return live()
	}
	g.engine.needs.Store(true)
	assert.NoError(t, g.memory.Edit("uid-1", func(r *fake.Record) { r.Load = 0.1 }))
	g.eventually("asks for update", func() bool { return g.server().NeedsEnsure })
	waits = append(waits, runAndEvict(2*time.Minute))
	assert.True(t, !g.engine.needs.Load(), "the driver was not called for its update")
	g.newReconciler()
	waits = append(waits, runAndEvict(9*time.Minute), runAndEvict(2*time.Minute), runAndEvict(11*time.Minute))
	want := []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second, 0}
	assert.True(t, slices.Equal(waits, want), "it was started again after %v, want %v", waits, want)
}
