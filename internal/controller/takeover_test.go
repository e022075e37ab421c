// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy/policytest"
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
	g.r.Client = interceptor.NewClient(g.api, interceptor.Funcs{
		Get: func(_ context.Context, _ client.WithWatch, _ client.ObjectKey, obj client.Object, _ ...client.GetOption) error {
			g.cached.DeepCopyInto(obj.(*api.VirtualMachine)) //nolint:forcetypeassert // there are no other Gets
			return nil
		},
	})
}

func (g *rig) deleteServer() {
	g.t.Helper()
	assert.NoError(g.t, g.inv.Delete(g.t.Context(), driver.Target{UID: "uid-1"}, false))
	g.eventually("the server is gone", func() bool { return g.inv.Get("uid-1").Answer == inventory.Gone })
}

func (g *rig) wantNoServer() {
	g.t.Helper()
	servers, err := g.engine.List(g.t.Context())
	if err != nil || len(servers) > 0 {
		g.t.Errorf("the engine has %v, %v: want none", servers, err)
	}
}

// TestFinalizerRemovedByThePredecessor checks that nothing is created for an object
// that is gone, even if the cache still has it with its finalizer.
func TestFinalizerRemovedByThePredecessor(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.takeOver()
	vm := g.vm()
	controllerutil.RemoveFinalizer(vm, api.FinalizerServer)
	assert.NoError(t, g.api.Update(t.Context(), vm))
	assert.NoError(t, g.api.Delete(t.Context(), vm))
	g.deleteServer()
	g.reconcile()
	g.wantNoServer()
}

// TestDeletedMeanwhile checks that the API's answer counts from then on.
func TestDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.takeOver()
	assert.NoError(t, g.api.Delete(t.Context(), g.vm()))
	g.deleteServer()
	g.reconcile()
	g.wantNoServer()
	if vm := g.vm(); vm != nil {
		t.Errorf("the object is still there: %v, deleted at %v", vm.Finalizers, vm.DeletionTimestamp)
	}
}

// TestFinalizerRemovedWithoutAServer checks that a predecessor that was suspended
// during a creation creates no server when it resumes, although its successor has
// changed nothing before.
func TestFinalizerRemovedWithoutAServer(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm").Bound("fake/" + g.inv.Get("none").EngineID))
	assert.NoError(t, g.api.Delete(t.Context(), g.vm()))
	g.reconcile()
	if vm := g.vm(); vm != nil {
		t.Fatalf("the object is still there: %v", vm.Finalizers)
	}
	spec := driver.ServerSpec{
		Target: driver.Target{UID: "uid-1", Epoch: g.r.Epoch() - 1}, Power: driver.PowerOn, CPUMilli: 1000, MemoryBytes: 1e9,
	}
	if _, err := g.engine.Ensure(t.Context(), spec); !errors.Is(err, driver.ErrFenced) {
		t.Errorf("the predecessor's call: got error %v, want %v", err, driver.ErrFenced)
	}
	g.wantNoServer()
}

// TestStoppedByThePredecessor checks that a new leader with an outdated cache does
// not undo what a user has requested meanwhile.
func TestStoppedByThePredecessor(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	old := g.vm()
	g.edit(func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionStopped })
	g.reconcile()
	run := g.server().Run
	g.takeOver()
	old.DeepCopyInto(g.cached)
	g.r.Epoch = func() uint64 { return 1 << 40 } // everything before belongs to earlier leaders
	g.reconcile()
	if server := g.server(); server.State != driver.StateStopped || server.Run != run {
		t.Errorf("the server is %s, run %s: want it left off", server.State, server.Run)
	}
}

// wantRestartByNewLeader requests a restart from a new leader with an outdated
// view, and checks that it ends the given run.
func (g *rig) wantRestartByNewLeader(run string) {
	g.t.Helper()
	g.engine.outdated.Store(true)
	g.startInventory()
	g.engine.outdated.Store(false)
	g.newReconciler()
	at := metav1.NewTime(policytest.T0)
	g.edit(func(spec *api.VirtualMachineSpec) { spec.RestartedAt = &at })
	g.reconcile()
	if g.server().Run == run || !g.vm().Status.RestartedAt.Equal(&at) {
		g.t.Errorf("run %q after %q, restarted at %v: want a restart", g.server().Run, run, g.vm().Status.RestartedAt)
	}
}

// TestServerCreatedByThePredecessor checks that a new leader with an outdated view
// does not treat its adoption of a server as a creation. Otherwise a requested
// restart would count as done.
func TestServerCreatedByThePredecessor(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	run := g.server().Run
	g.wantRestartByNewLeader(run)
}

// TestStartedByThePredecessor checks that a new leader that has not observed the
// server's last start ends that run on a restart, not an older one.
func TestStartedByThePredecessor(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.engine.outdatedList, _ = g.engine.Driver.List(t.Context())
	for _, action := range []api.Action{api.ActionStopped, api.ActionActive} {
		g.edit(func(spec *api.VirtualMachineSpec) { spec.Action = action })
		g.reconcile()
	}
	run := g.server().Run
	g.wantRestartByNewLeader(run)
}

// TestRefusedStepIsNotReported checks that a refused step is not a failure of the
// VM.
func TestRefusedStepIsNotReported(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.engine.ensure = func(context.Context, driver.ServerSpec, func() (driver.Server, error)) (driver.Server, error) {
		return driver.Server{}, driver.Errorf(driver.ErrNotLeading, "another replica leads")
	}
	g.edit(func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionStopped })
	writes := g.countWrites(func() {
		result, err := g.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key})
		if err != nil || result.RequeueAfter != fencedRetry {
			t.Errorf("got %+v, %v: want another try after %s", result, err, fencedRetry)
		}
	})
	if writes != 0 {
		t.Errorf("%d writes, want none", writes)
	}
	g.engine.ensure = nil
	g.reconcile()
	g.wantPhase(api.PhaseStopped, api.ReasonStoppedAsAsked)
}

// TestCancelledCallIsNotReported checks that a call that was cancelled because
// leadership was lost is not a failure either.
func TestCancelledCallIsNotReported(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.engine.ensure = func(context.Context, driver.ServerSpec, func() (driver.Server, error)) (driver.Server, error) {
		return driver.Server{}, driver.Errorf(driver.ErrDeposed, "another replica leads")
	}
	g.edit(func(spec *api.VirtualMachineSpec) { spec.Action = api.ActionStopped })
	if writes := g.countWrites(func() { _, _ = g.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}) }); writes != 0 {
		t.Errorf("%d writes, want none", writes)
	}
}

// TestDeposedWritesNothing checks this because a deposed leader's view may be
// wrong.
func TestDeposedWritesNothing(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.memory.SetAvailable(false)
	g.eventually("the engine is unknown", func() bool {
		g.clock.Step(time.Second)
		return g.inv.Get("uid-1").Answer == inventory.Unknown
	})
	g.clock.Step(10 * time.Second)
	g.deposed = errors.New("another replica leads")
	if writes := g.countWrites(func() { _, _ = g.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}) }); writes != 0 {
		t.Errorf("%d writes, want none", writes)
	}
	g.deposed = nil
	g.reconcile()
	g.wantPhase(api.PhaseUnknown, api.ReasonEngineUnavailable)
}

// TestPolicyChangedToRetain checks that the user's latest policy counts for a
// removal, even if the new leader's cache does not have it yet.
func TestPolicyChangedToRetain(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	assert.NoError(t, g.api.Delete(t.Context(), g.vm()))
	g.takeOver()
	g.edit(func(spec *api.VirtualMachineSpec) { spec.DeletionPolicy = api.DeletionRetain })
	for range 5 {
		if _, err := g.r.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}); err != nil {
			t.Fatal(err)
		}
		g.clock.Step(time.Minute)
	}
	records := g.memory.Records()
	if len(records) != 1 || !records[0].Retained {
		t.Errorf("the engine has %+v: want the server released", records)
	}
}

// TestFailureBesideAnOldList checks that a new leader whose list is older than the server does not
// report that there is none, while the engine cannot be asked.
func TestFailureBesideAnOldList(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	if g.vm().Status.Server == nil {
		t.Fatal("the status has no server")
	}
	g.engine.outdated.Store(true)
	g.startInventory()
	g.engine.failQueries.Store(true)
	g.newReconciler()
	g.reconcile()
	if g.vm().Status.Server == nil {
		t.Errorf("the status is %+v", g.vm().Status)
	}
	g.engine.outdated.Store(false)
	g.engine.failQueries.Store(false)
	g.clock.Step(time.Minute)
	g.eventually("the server is found", func() bool { return g.inv.Get("uid-1").Answer == inventory.Present })
	g.reconcile()
	if s := g.vm().Status; s.Server == nil || s.Phase != api.PhaseActive {
		t.Errorf("the status is %+v", s)
	}
}

// leadWithList simulates a new leader whose list of the engine is older than what its predecessor did
// last. No event follows.
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
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm"))
	g.reconcile()
	g.leadWithList(nil)
	assert.NoError(t, g.api.Delete(t.Context(), g.vm()))
	g.engine.delete = func(do func() error) error {
		if servers, err := g.engine.Driver.List(t.Context()); err != nil || len(servers) != 1 || servers[0].State != driver.StateStopped {
			t.Errorf("removed while the engine had %+v, %v: want a server that is off", servers, err)
		}
		g.eventually("the removal is reported", func() bool {
			g.clock.Step(progressDelay)
			return g.vm().Status.Phase == api.PhaseTerminating
		})
		if g.vm().Status.Server == nil {
			t.Errorf("while the server is removed the status is %+v", g.vm().Status)
		}
		return do()
	}
	g.reconcile()
	g.wantNoServer()
}

// TestReadyBesideAnOldList checks that a new leader does not take what its list has of the server for the
// outcome of what its predecessor began later.
func TestReadyBesideAnOldList(t *testing.T) {
	t.Parallel()
	g := newRig(t, fake.Options{ShutdownTime: time.Hour})
	g.create(framework.NewVM("vm"))
	var older []driver.Server
	for _, action := range []api.Action{api.ActionStopped, api.ActionActive, api.ActionStopped} {
		g.edit(func(spec *api.VirtualMachineSpec) { spec.Action = action })
		g.reconcile()
		if older == nil {
			older, _ = g.engine.Driver.List(t.Context())
		}
	}
	g.leadWithList(older)
	g.reconcile()
	if s := g.vm().Status.Server; s == nil || s.State != string(driver.StateStopping) {
		t.Errorf("the status has the server %+v", s)
	}
	g.wantCondition(api.ConditionReady, metav1.ConditionFalse)
}
