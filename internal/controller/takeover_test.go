// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// takeOver simulates a new leader whose cache still has the current version of the
// VirtualMachine.
func (g *rig) takeOver() {
	g.t.Helper()
	g.cached = g.vm()
	g.newReconciler()
	g.r.Client.Client = interceptor.NewClient(g.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			g.cached.DeepCopyInto(obj.(*api.VirtualMachine)) //nolint:forcetypeassert // there are no other Gets
			return nil
		},
	})
}

func (g *rig) deleteServer() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), callTimeout)
	defer cancel()
	assert.NoError(g.t, g.inv.Delete(ctx, driver.Target{UID: "uid-1"}, false))
	g.eventually("the server is gone", func() bool { return g.inv.Get("uid-1").Answer == inventory.Gone })
}

// TestDeletedMeanwhile checks that the API's answer counts, whether the object is under deletion or gone,
// even if the cache still has the object with its finalizer.
func TestDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	for name, isGone := range map[string]bool{"under deletion": false, "gone": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			g.takeOver()
			if isGone {
				vm := g.vm()
				controllerutil.RemoveFinalizer(vm, api.FinalizerServer)
				assert.NoError(t, g.api.Update(t.Context(), vm))
			}
			g.delete()
			g.deleteServer()
			g.reconcile()
			g.wantNothing()
		})
	}
}

// TestFinalizerRemovedWithoutAServer checks that a predecessor that was suspended
// during a creation creates no server when it resumes, although its successor has
// changed nothing before.
func TestFinalizerRemovedWithoutAServer(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm").Bound("fake/" + g.inv.Get("none").EngineID + "/uid-1"))
	g.delete()
	g.reconcile()
	vm := g.vm()
	assert.Require(t, vm == nil, "the object is still there: %v", vm)
	spec := driver.ServerSpec{
		Target: driver.Target{UID: "uid-1", Epoch: g.r.Epoch() - 1}, Power: driver.PowerOn, CPUMilli: 1000, MemoryBytes: 1e9,
	}
	assert.ErrorIs(t, "the predecessor's call", assert.ErrorOf(g.engine.Driver.Ensure(t.Context(), spec)), driver.ErrFenced)
	g.wantNothing()
}

// TestStoppedByThePredecessor checks that a new leader with an outdated cache does
// not undo what a user has requested meanwhile.
func TestStoppedByThePredecessor(t *testing.T) {
	t.Parallel()
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	old := g.vm()
	g.setAction(api.ActionStopped)
	g.reconcile()
	run := g.server().Run
	g.takeOver()
	old.DeepCopyInto(g.cached)
	g.r.Epoch = func() uint64 { return 1 << 40 } // all smaller epochs belong to earlier leaders
	g.reconcile()
	server := g.server()
	assert.True(t, server.State == driver.StateStopped && server.Run == run, "the server is %s, run %s: want it left off", server.State, server.Run)
}

// TestRestartBesideAnOldList checks that a new leader whose list is older than the server, or than its
// last start, ends the present run for a restart. It adopts the server, which does not count as a
// creation: a creation would complete the request.
func TestRestartBesideAnOldList(t *testing.T) {
	t.Parallel()
	for name, isCreated := range map[string]bool{"before the creation": false, "before the last start": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			var older []driver.Server
			if isCreated {
				older, _ = g.engine.Driver.List(t.Context())
				for _, action := range []api.Action{api.ActionStopped, api.ActionActive} {
					g.setAction(action)
					g.reconcile()
				}
			}
			run := g.server().Run
			g.leadWithList(older)
			g.edit(restartAtT0)
			g.reconcile()
			if at := g.vm().Status.RestartedAt; g.server().Run == run || at == nil || !at.Time.Equal(vmtest.T0) {
				t.Errorf("run %q after %q, restarted at %v: want a restart", g.server().Run, run, at)
			}
		})
	}
}

// TestRefusedStepIsNotReported checks that a step that was refused, or cancelled because leadership was
// lost, is not a failure of the VM.
func TestRefusedStepIsNotReported(t *testing.T) {
	t.Parallel()
	for _, err := range []error{driver.ErrNotLeading, driver.ErrDeposed} {
		g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
		g.engine.ensure = failWith(driver.Errorf(err, "another replica leads"))
		g.setAction(api.ActionStopped)
		g.wantWrites(0, func() {
			if result, err := g.pass(); err != nil || result.RequeueAfter != fencedRetry {
				t.Errorf("got %+v, %v: want another try after %s", result, err, fencedRetry)
			}
		})
		g.engine.ensure = nil
		g.reconcile()
		g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
	}
}

// TestPolicyChangedToRetain checks that the user's latest policy counts for a
// removal, even if the new leader's cache does not have it yet.
func TestPolicyChangedToRetain(t *testing.T) {
	t.Parallel()
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.delete()
	g.takeOver()
	g.edit(func(spec *api.VirtualMachineSpec) { spec.DeletionPolicy = api.DeletionRetain })
	for range 5 {
		g.passes(1)
		g.clock.Step(time.Minute)
	}
	records := g.memory.Records()
	assert.True(t, len(records) == 1 && records[0].Retained, "the engine has %+v: want the server released", records)
}

// TestFailureBesideAnOldList checks that a new leader whose list is older than the server does not
// report that there is none, while the engine cannot be asked.
func TestFailureBesideAnOldList(t *testing.T) {
	t.Parallel()
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	assert.Require(t, g.vm().Status.Server != nil, "the status does not name a server")
	g.engine.outdated.Store(true)
	g.startInventory()
	g.engine.failQueries.Store(true)
	g.newReconciler()
	g.reconcile()
	assert.True(t, g.vm().Status.Server != nil, "the status is %+v", g.vm().Status)
	g.engine.outdated.Store(false)
	g.engine.failQueries.Store(false)
	g.clock.Step(time.Minute)
	g.eventually("the server is found", func() bool { return g.inv.Get("uid-1").Answer == inventory.Present })
	g.reconcile()
	s := g.vm().Status
	assert.True(t, s.Server != nil && s.Phase == api.PhaseActive, "the status is %+v", s)
}

// leadWithList simulates a new leader whose list of the engine is older than its predecessor's last
// action. No event follows.
func (g *rig) leadWithList(older []driver.Server) {
	g.t.Helper()
	g.engine.outdatedList = older
	g.engine.outdated.Store(true)
	g.startInventory()
	g.newReconciler()
	g.engine.outdated.Store(false)
}

// TestDeletionBesideAnOldList checks that a new leader whose list is older than the server shuts the
// guest down before it removes the server, and does not report meanwhile that there is none.
func TestDeletionBesideAnOldList(t *testing.T) {
	t.Parallel()
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.leadWithList(nil)
	g.delete()
	g.engine.delete = func(do func() error) error {
		if servers, err := g.engine.Driver.List(t.Context()); err != nil || len(servers) != 1 || servers[0].State != driver.StateStopped {
			t.Errorf("removed while the engine had %+v, %v: want a server that is off", servers, err)
		}
		g.eventually("the removal is reported", func() bool {
			g.clock.Step(progressDelay)
			return g.vm().Status.Phase == api.PhaseTerminating
		})
		assert.True(t, g.vm().Status.Server != nil, "while the server is removed the status is %+v", g.vm().Status)
		return do()
	}
	g.reconcile()
	g.wantNothing()
}

// TestReadyBesideAnOldList checks that a new leader does not take the server in its list for the outcome
// of an action that its predecessor began later.
func TestReadyBesideAnOldList(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{ShutdownTime: time.Hour})
	g.create(framework.NewVM("vm"))
	var older []driver.Server
	for _, action := range []api.Action{api.ActionStopped, api.ActionActive, api.ActionStopped} {
		g.setAction(action)
		g.reconcile()
		if older == nil {
			older, _ = g.engine.Driver.List(t.Context())
		}
	}
	g.leadWithList(older)
	g.reconcile()
	s := g.vm().Status.Server
	assert.True(t, s != nil && s.State == string(driver.StateStopping), "the status has the server %+v", s)
	g.wantCondition(api.ConditionReady, metav1.ConditionFalse)
}
