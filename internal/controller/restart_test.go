// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"encoding/json"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// requestAgain sets spec.restartedAt to a new value.
func (g *rig) requestAgain() {
	g.t.Helper()
	g.edit(func(s *api.VirtualMachineSpec) { s.RestartedAt = &metav1.Time{Time: s.RestartedAt.Add(time.Second)} })
}

// wantRestarts checks how often the server was restarted, and that no request is
// left.
func (g *rig) wantRestarts(want int64) {
	g.t.Helper()
	vm := g.vm()
	if vm.Status.RestartCount != want || vm.Status.Operation != nil || !vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt) {
		g.t.Errorf("restarted %d times, want %d; handled %v of %v, under way %+v",
			vm.Status.RestartCount, want, vm.Status.RestartedAt, vm.Spec.RestartedAt, vm.Status.Operation)
	}
	if got := g.reasons(); slices.Contains(got, api.ReasonOperationFailed) {
		g.t.Errorf("events %v", got)
	}
}

// TestRestartedAtIsWrittenOnce checks that the status of a VM is the same in each pass, also with
// a spec.restartedAt that the API server does not keep in a status as it is.
func TestRestartedAtIsWrittenOnce(t *testing.T) {
	for _, at := range []time.Time{{}, vmtest.T0, vmtest.T0.Add(123 * time.Millisecond)} {
		vm := vmtest.ReportedVM().RestartedAt(at).Obj()
		vm.Status.RestartedAt = &metav1.Time{Time: vmtest.T0}
		var first api.VirtualMachineStatus
		for pass := range 2 {
			status := statusOf(vm, vmtest.Present(driver.StateRunning))
			assert.True(t, pass != 1 || equality.Semantic.DeepEqual(first, status), "%s is handled as %v, and then as %v", at, first.RestartedAt, status.RestartedAt)
			text, err := json.Marshal(status)
			if err == nil {
				err = json.Unmarshal(text, &first)
			}
			assert.NoError(t, err)
			vm.Status = first
		}
	}
}

// TestCrashesAfterAStableRun checks that the count of crashes starts at one after a stable
// run, even if no controller observed that run.
func TestCrashesAfterAStableRun(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	for range 6 {
		g.crashAndRestart(0)
	}
	g.newReconciler()
	g.clock.Step(time.Hour)
	for n, want := range []time.Duration{0, time.Second, 2 * time.Second} {
		wait := g.crashAndRestart(0)
		assert.True(t, wait == want, "crash %d after the stable run was waited for %s, want %s", n, wait, want)
	}
}

// TestWaitAfterCrashIsReported checks that the status says at once that a crashed server
// is off, and when it is started again.
func TestWaitAfterCrashIsReported(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.crashAndRestart(0)
	g.crashNow(0)
	g.wantWrites(1, func() { g.reconcile() })
	g.wantPhase(api.PhaseFailed, api.ReasonRestarting)
	g.wantCondition(api.ConditionRunning, metav1.ConditionFalse)
	next := g.vm().Status.Operation.NextRetryTime
	assert.True(t, next != nil && next.Equal(&metav1.MicroTime{Time: g.clock.Now().Add(time.Second)}),
		"the next try is at %v, want 1 s after %v", next, g.clock.Now())
	g.wantWrites(0, func() { g.reconcile() })
}

// TestLeavingRun checks that a start which waits until the engine has removed the last run is neither a
// failure nor done, is requested once, and is counted once.
func TestLeavingRun(t *testing.T) {
	tests := map[string]struct {
		begin func(g *rig)
		event string
	}{
		"after a crash": {func(g *rig) { g.crashNow(0) }, api.EventStarted},
		"in a restart":  {(*rig).requestRestart, api.EventRestarted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			g.clock.Step(time.Minute) // the run is stable
			g.reconcile()
			g.reasons()
			run, calls := g.server().Run, g.engine.calls
			g.engine.leaving.Store(true)
			g.engine.ensure = func(spec driver.ServerSpec, _ call) (driver.Server, error) {
				err := g.memory.Edit("uid-1", func(r *fake.Record) { r.State, r.Exit, r.UpAt = driver.StateStopped, &fake.Exit{Code: 1}, time.Time{} })
				if err != nil {
					return driver.Server{}, err
				}
				left, err := g.engine.List(g.t.Context(), spec.UID)
				return left[0], err
			}
			tc.begin(g)
			for range 2 {
				g.reconcile()
				g.wantPhase(api.PhaseCreating, api.ReasonRestarting)
			}
			assert.Equal(t, "the message", g.vm().Status.Message, "the last run has yet to be removed")
			assert.Equal(t, "calls", g.engine.calls-calls, 1)
			got := g.reasons()
			assert.True(t, !slices.Contains(got, tc.event) && !slices.Contains(got, api.ReasonOperationFailed), "events while it waits: %v", got)
			g.engine.leaving.Store(false)
			g.engine.ensure = nil
			g.crashNow(0)
			g.eventually("the last run is removed", func() bool { return !g.server().IsLeaving })
			g.reconcile()
			g.wantPhase(api.PhaseActive, api.ReasonRunning)
			got = g.reasons()
			assert.True(t, slices.Contains(got, tc.event) && g.server().Run != run, "events %v, run %s after %s", got, g.server().Run, run)
			wait := g.crashAndRestart(0)
			assert.True(t, tc.event != api.EventStarted || wait == time.Second, "the second crash was waited for %s, want 1 s", wait)
		})
	}
}

// shutDown lets the guest's run end.
func (g *rig) shutDown() {
	g.t.Helper()
	g.eventually("the guest has shut down", func() bool {
		g.clock.Step(time.Second)
		return g.server().State == driver.StateStopped
	})
}

// TestRestartRequestedAgain checks that a request during a restart counts for that
// restart while the run to end is still the current one, and is never lost.
func TestRestartRequestedAgain(t *testing.T) {
	refuse := func(driver.ServerSpec, call) (driver.Server, error) {
		return driver.Server{}, driver.Errorf(driver.ErrInvalid, "no")
	}
	tests := map[string]struct {
		shutdown time.Duration
		play     func(g *rig)
		want     int64
	}{
		"in the stop": {3 * time.Second, func(g *rig) {
			g.reconcile()
			g.requestAgain()
			g.reconcile()
			g.shutDown()
		}, 1},
		"after the stop": {3 * time.Second, func(g *rig) {
			g.reconcile()
			g.shutDown()
			g.requestAgain()
		}, 1},
		"in a stop that is forced": {time.Hour, func(g *rig) {
			g.reconcile()
			g.requestAgain()
			g.clock.Step(time.Minute)
		}, 2},
		"in a stop whose end fails at first": {time.Hour, func(g *rig) {
			g.reconcile()
			g.requestAgain()
			g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "not now"))
			g.clock.Step(time.Minute)
			g.reconcile()
			g.reasons()
			g.engine.ensure = nil
			g.clock.Step(time.Minute)
			g.reconcile()
			g.clock.Step(time.Minute)
		}, 2},
		"after one that was refused": {0, func(g *rig) {
			g.engine.ensure = refuse
			g.reconcile()
			g.reasons()
			g.engine.ensure = nil
			g.requestAgain()
		}, 1},
		"before the first was reported": {0, func(g *rig) {
			g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
				s, err := live()
				g.engine.ensure = nil
				g.requestAgain() // which makes the report fail with a conflict
				return s, err
			}
		}, 2},
		"before the first was reported, by another leader": {0, func(g *rig) {
			g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
				_, _ = live()
				panic("crash")
			}
			crashInCall(g.t, g)
			g.engine.ensure = nil
			g.startInventory()
			g.newReconciler()
			g.clock.Step(time.Second) // the runs have different times
			g.requestAgain()
		}, 2},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{ShutdownTime: tc.shutdown}, framework.NewVM("vm"))
			g.requestRestart()
			tc.play(g)
			for range 3 {
				g.reconcile()
				g.clock.Step(time.Minute)
			}
			g.wantRestarts(tc.want)
		})
	}
}

// TestUnrecordedRestartIsNotBegun checks that a restart is not begun if it could not be
// recorded, whatever the pass did before.
func TestUnrecordedRestartIsNotBegun(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm"))
	g.requestRestart()
	g.reconcile()
	g.requestAgain()
	run := g.server().Run
	g.clock.Step(time.Minute) // the stop is forced, and another restart must follow
	g.statusErr = errConflict
	g.passes(2)
	server := g.server()
	assert.True(t, server.Run != run && server.State == driver.StateRunning, "run %s after %s is %s, want another one left on", server.Run, run, server.State)
	g.statusErr = nil
	for range 3 {
		g.reconcile()
		g.clock.Step(time.Minute)
	}
	g.wantRestarts(2)
}

// TestRestartThatFailedLate checks that changes that waited for a restart are no longer pending, although
// the call that restarted the server failed after the run had begun.
func TestRestartThatFailedLate(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: 3 * time.Second}, framework.NewVM("vm"))
	g.edit(func(s *api.VirtualMachineSpec) { s.SSHAuthorizedKeys = []string{"ssh-ed25519 AAAA"} })
	g.reconcile()
	g.wantCondition(api.ConditionRestartRequired, metav1.ConditionTrue)
	run := g.server().Run
	g.requestRestart()
	g.reconcile()
	g.shutDown()
	g.engine.ensure = func(_ driver.ServerSpec, live call) (driver.Server, error) {
		server, err := live()
		return server, cmp.Or(err, errors.New("the machine does not answer"))
	}
	g.reconcile()
	g.engine.ensure = nil
	g.eventually("the new run is observed", func() bool { return g.server().Run != run })
	g.reconcile()
	g.clock.Step(time.Minute)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.wantCondition(api.ConditionRestartRequired, "")
	calls := g.engine.calls
	g.reconcile()
	assert.True(t, g.engine.calls == calls, "the driver was called although nothing waits")
}
