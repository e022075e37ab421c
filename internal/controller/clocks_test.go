// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// clockErrors are clock errors of another host.
var clockErrors = map[string]time.Duration{"ahead": time.Hour, "behind": -time.Hour, "right": 0}

// deletedAt makes the cache show a deletion by an API server whose clock is wrong.
func (g *rig) deletedAt(when time.Time) {
	g.t.Helper()
	g.delete()
	g.r.Client.Client = interceptor.NewClient(g.api, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, obj, opts...)
			if obj.GetDeletionTimestamp() != nil {
				obj.SetDeletionTimestamp(&metav1.Time{Time: when})
			}
			return err
		},
	})
}

// TestDeletionByAnotherClock checks that the grace period has its full length,
// whatever the API server's clock.
func TestDeletionByAnotherClock(t *testing.T) {
	for name, off := range clockErrors {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{ShutdownTime: time.Hour}, framework.NewVM("vm").GracePeriod(10))
			g.deletedAt(g.clock.Now().Add(off))
			g.reconcile()
			g.clock.Step(9 * time.Second)
			g.reconcile()
			assert.Equal(t, "after 9 s of 10 the server", g.server().State, driver.StateStopping)
			g.clock.Step(time.Second)
			g.reconcile()
			g.wantNothing()
		})
	}
}

// crashNow ends the server's run by the engine's clock.
func (g *rig) crashNow(off time.Duration) {
	g.t.Helper()
	g.endAs(fake.Exit{Code: 1, At: g.clock.Now().Add(off)})
}

// endAs ends the server's run.
func (g *rig) endAs(exit fake.Exit) {
	g.t.Helper()
	assert.NoError(g.t, g.memory.Edit("uid-1", func(r *fake.Record) {
		r.State, r.Exit, r.UpAt, r.StopsAt = driver.StateStopped, &exit, time.Time{}, time.Time{}
	}))
	g.eventually("the end is observed", func() bool { return g.server().State == driver.StateStopped })
}

// stopByOthers has the server's run end, which Drover has not asked for.
func (g *rig) stopByOthers() {
	g.t.Helper()
	assert.NoError(g.t, g.memory.Edit("uid-1", func(r *fake.Record) {
		r.State, r.StopsAt = driver.StateStopping, g.clock.Now().Add(time.Hour)
	}))
	g.eventually("the stop is observed", func() bool { return g.server().State == driver.StateStopping })
}

// crashAndRestart ends the server's run and returns how long it took until the next one.
func (g *rig) crashAndRestart(off time.Duration) time.Duration {
	g.t.Helper()
	g.crashNow(off)
	return g.untilNextRun()
}

// untilNextRun returns how long it takes until the server has another run.
func (g *rig) untilNextRun() time.Duration {
	g.t.Helper()
	run, began := g.server().Run, g.clock.Now()
	g.runWhile(func() bool { return g.server().Run == run }, time.Hour)
	return g.server().StartedAt.Sub(began).Truncate(time.Second)
}

// TestRunsEndedByOthers checks that a server whose runs others end at once is started again whatever its
// restart policy, and ever later, as one whose guest crashes.
func TestRunsEndedByOthers(t *testing.T) {
	forced, byHost := fake.Exit{Code: 137}, fake.Exit{Reason: driver.ExitHostShutdown}
	tests := map[string]struct {
		action     api.Action
		isStopSeen bool
		exit       fake.Exit
	}{
		"the stop is seen":            {api.ActionActive, true, forced},
		"the stop is not seen":        {api.ActionActive, false, forced},
		"the host ends it":            {api.ActionActive, false, byHost},
		"paused":                      {api.ActionPaused, false, forced},
		"paused and the stop is seen": {api.ActionPaused, true, forced},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			vm := framework.NewVM("vm").RestartPolicy(api.RestartNever)
			g := newRunning(t, fake.Options{}, vm)
			g.setAction(tc.action)
			g.reconcile()
			g.engine.disrupts.Store(tc.exit == forced)
			var waits []time.Duration
			for range 4 {
				if tc.isStopSeen {
					g.stopByOthers()
					g.reconcile()
					g.wantPhase(api.PhaseActive, api.ReasonStopping)
				}
				exit := tc.exit
				exit.At = g.clock.Now()
				g.endAs(exit)
				waits = append(waits, g.untilNextRun())
			}
			want := []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second}
			assert.True(t, slices.Equal(waits, want), "it was started again after %v, want %v", waits, want)
		})
	}
}

// TestCrashesByAnotherClock checks that a crash-looping server is started as often
// with a wrong engine clock as with a correct one.
func TestCrashesByAnotherClock(t *testing.T) {
	for name, off := range clockErrors {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			var waits []time.Duration
			for range 4 {
				waits = append(waits, g.crashAndRestart(off))
			}
			want := []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second}
			assert.True(t, slices.Equal(waits, want), "the crashes were waited for %v, want %v", waits, want)
		})
	}
}

// TestRetryOfAPredecessorWithAnotherClock checks that a new leader waits the full
// backoff from the moment when it starts, and reports that.
func TestRetryOfAPredecessorWithAnotherClock(t *testing.T) {
	for name, off := range clockErrors {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			g.engine.ensure = failWith(driver.Errorf(driver.ErrRetry, "boom"))
			g.create(framework.NewVM("vm"))
			g.reconcile()
			vm := g.vm()
			next := metav1.NewMicroTime(vm.Status.Operation.NextRetryTime.Add(off))
			began := metav1.NewMicroTime(vm.Status.Operation.StartedAt.Add(off))
			vm.Status.Operation.NextRetryTime, vm.Status.Operation.StartedAt, vm.Status.Operation.Attempts = &next, began, 3
			assert.NoError(t, g.api.Status().Update(t.Context(), vm))
			g.newReconciler()
			g.clock.Step(time.Minute)
			came, calls := g.clock.Now(), g.engine.calls
			assert.Equal(t, "the new leader waits, want 4 s", g.reconcile().RequeueAfter, 4*time.Second)
			assert.True(t, g.engine.calls == calls, "the new leader did not wait")
			wait := g.vm().Status.Operation.NextRetryTime.Sub(came)
			assert.True(t, wait.Round(time.Second) == 4*time.Second, "the status says that the next try is in %s", wait)
			g.clock.Step(4 * time.Second)
			g.reconcile()
			assert.True(t, g.engine.calls == calls+1, "%d tries after the wait, want 1", g.engine.calls-calls)
		})
	}
}

// TestStopThatFailedBeforeADeletion checks that a running guest still gets its
// shutdown.
func TestStopThatFailedBeforeADeletion(t *testing.T) {
	g := newRunning(t, fake.Options{ShutdownTime: 3 * time.Second}, framework.NewVM("vm").GracePeriod(10))
	g.engine.ensure = failWith(errors.New("boom"))
	g.setAction(api.ActionStopped)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonOperationFailed)
	g.engine.ensure = nil
	g.edit(func(*api.VirtualMachineSpec) {}) // a deletion increments the generation
	g.delete()
	g.reconcile()
	assert.Equal(t, "the server, want it to shut down", g.server().State, driver.StateStopping)
}

// TestRefusedStopUnderADeletion checks that a refused stop is retried like any
// other failure, since no new spec will come. The deletion ends with the grace
// period.
func TestRefusedStopUnderADeletion(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").GracePeriod(10))
	calls := g.engine.calls
	g.engine.ensure = failWith(driver.Errorf(driver.ErrInvalid, "no"))
	g.delete()
	took := g.runWhile(func() bool { return g.vm() != nil }, time.Hour)
	assert.True(t, took >= 10*time.Second && took <= 12*time.Second, "the deletion took %s, want the grace period of 10 s", took)
	if tries := g.engine.calls - calls; tries != 4 { // after 0, 1, 3 and 7 s
		t.Errorf("%d tries, want 4", tries)
	}
}

// TestFetchesThatFail checks that a server whose guest never runs is started after growing delays,
// however long each try has taken, whatever its restart policy, and at once after a change of the spec.
func TestFetchesThatFail(t *testing.T) {
	g := newRunning(t, fake.Options{BootTime: time.Hour}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	var waits []time.Duration
	for range 4 {
		g.clock.Step(time.Minute)
		g.reconcile()
		g.endAs(fake.Exit{Code: 7, Reason: driver.ExitNotStarted, At: g.clock.Now()})
		waits = append(waits, g.untilNextRun())
	}
	want := []time.Duration{0, time.Second, 2 * time.Second, 4 * time.Second}
	assert.True(t, slices.Equal(waits, want), "it was started after %v, want %v", waits, want)
	g.clock.Step(time.Minute)
	g.reconcile()
	g.endAs(fake.Exit{Code: 7, Reason: driver.ExitNotStarted, At: g.clock.Now()})
	g.reconcile()
	g.edit(func(s *api.VirtualMachineSpec) { s.Image = &api.Image{Source: "another"} })
	assert.Equal(t, "after a change of the spec it was started after", g.untilNextRun(), 0)
}
