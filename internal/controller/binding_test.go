// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/queue"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// addDriver adds a second driver to the rig, named other, with another engine.
func (g *rig) addDriver() (*fake.Memory, *inventory.Inventory) {
	g.t.Helper()
	first, engine := g.inv, g.engine
	memory := fake.NewMemory(g.clock)
	d, err := fake.New(fake.Options{ClusterID: "cluster", Memory: memory, Clock: g.clock, Log: logr.Discard()})
	assert.NoError(g.t, err)
	g.engine = &interceptedDriver{Driver: d}
	g.startInventoryOf("other")
	second := g.inv
	g.inv, g.engine = first, engine
	g.r.Drivers, g.r.Inventories = append(g.r.Drivers, "other"), []*inventory.Inventory{first, second}
	return memory, second
}

// asOther runs fn with the reconciler of driver other, on the same API.
func (g *rig) asOther(inv *inventory.Inventory, fn func()) {
	g.t.Helper()
	mine := g.r
	g.newReconciler()
	g.r.Driver, g.r.Inventory, g.r.Drivers, g.r.Inventories = "other", inv, mine.Drivers, mine.Inventories
	fn()
	g.r = mine
}

// TestLateKeyOfAnotherDriver checks that a VM that was created again with another
// driver is left alone by the previous driver, whose work queue still has its name.
func TestLateKeyOfAnotherDriver(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.addDriver()
	g.create(framework.NewVM("vm").Driver("other"))
	g.wantWrites(0, func() { g.reconcile() })
	vm := g.vm()
	assert.True(t, len(vm.Finalizers) == 0 && len(g.memory.Records()) == 0, "bound to %q, servers %v", vm.Annotations[api.AnnotationBound], g.memory.Records())
}

// TestOrphanOfTheSameName checks that a server on another driver's engine, with the
// VM's name and another UID, proves nothing about the VM.
func TestOrphanOfTheSameName(t *testing.T) {
	g := newRig(t, fake.Options{})
	_, other := g.addDriver()
	g.create(framework.NewVM("vm").Driver("other"))
	g.asOther(other, func() { g.reconcile() })
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.wantWrites(0, func() { g.reconcile() }) // by the orphan's driver
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// replace simulates kubectl replace with the user's manifest.
func (g *rig) replace(change func(*api.VirtualMachine)) {
	g.t.Helper()
	vm := g.vm()
	vm.Finalizers, vm.Annotations = nil, nil
	change(vm)
	assert.NoError(g.t, g.api.Update(g.t.Context(), vm))
}

// TestReplacedManifest checks that a lost binding is restored from the status, even
// if the default driver has changed.
func TestReplacedManifest(t *testing.T) {
	lost := func(vm *api.VirtualMachine) { vm.Status.Binding = nil }
	tests := map[string]struct {
		change func(*api.VirtualMachine)
		status func(*api.VirtualMachine)
	}{
		"all of it lost":         {func(*api.VirtualMachine) {}, nil},
		"another binding":        {func(vm *api.VirtualMachine) { vm.Annotations = map[string]string{api.AnnotationBound: "other/x"} }, nil},
		"that of the status too": {func(*api.VirtualMachine) {}, lost},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			bound, run := g.vm().Annotations[api.AnnotationBound], g.server().Run
			if tc.status != nil {
				vm := g.vm()
				tc.status(vm)
				assert.NoError(t, g.api.Status().Update(t.Context(), vm))
			}
			g.replace(tc.change)
			memory, other := g.addDriver()
			g.r.Drivers = []string{"other", "fake"} // the default is now another driver
			g.asOther(other, func() { g.reconcile() })
			g.reconcile()
			vm := g.vm()
			assert.True(t, vm.Annotations[api.AnnotationBound] == bound && len(vm.Finalizers) == 1 && policy.AnnotationOf(*vm.Status.Binding) == bound,
				"bound to %q, status %v, finalizers %v: want %q", vm.Annotations[api.AnnotationBound], vm.Status.Binding, vm.Finalizers, bound)
			assert.True(t, len(memory.Records()) == 0 && g.server().Run == run, "a second server %v, run %s was %s", memory.Records(), g.server().Run, run)
		})
	}
}

// TestDeletionWithoutABinding checks that every driver must confirm that it does not have
// the server, since the engine of the server is unknown.
func TestDeletionWithoutABinding(t *testing.T) {
	lose := func(g *rig) {
		g.t.Helper()
		vm := g.vm()
		vm.Status.Binding, vm.Status.Driver, vm.Status.Server = nil, "", nil
		assert.NoError(g.t, g.api.Status().Update(g.t.Context(), vm))
		vm = g.vm()
		vm.Annotations = nil
		assert.NoError(g.t, g.api.Update(g.t.Context(), vm))
		assert.NoError(g.t, g.api.Delete(g.t.Context(), g.vm()))
	}
	t.Run("another driver has the server", func(t *testing.T) {
		g := newRig(t, fake.Options{})
		memory, other := g.addDriver()
		g.create(framework.NewVM("vm").Driver("other"))
		g.asOther(other, func() { g.reconcile() })
		lose(g)
		vm := g.vm()
		vm.Spec.Driver = "" // the default driver queries for the server
		assert.NoError(t, g.api.Update(t.Context(), vm))
		g.reconcile()
		c := meta.FindStatusCondition(g.vm().Status.Conditions, api.ConditionDeletionBlocked)
		assert.Require(t, c != nil && strings.Contains(c.Message, "driver other has the server") && strings.Contains(c.Message, api.AnnotationBound),
			"DeletionBlocked is %+v", c)
		assert.True(t, len(memory.Records()) == 1, "the server is gone")
		// This is the solution that the message names.
		vm = g.vm()
		vm.Annotations = map[string]string{api.AnnotationBound: "other/" + other.Get("x").EngineID + "/uid-1"}
		assert.NoError(t, g.api.Update(t.Context(), vm))
		g.asOther(other, func() {
			g.eventually("the VM is gone", func() bool {
				g.clock.Step(time.Second)
				g.reconcile()
				return g.vm() == nil
			})
		})
		assert.True(t, len(memory.Records()) == 0, "the server is left")
	})
	t.Run("another driver cannot be queried", func(t *testing.T) {
		g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
		memory, other := g.addDriver()
		memory.SetAvailable(false)
		lose(g)
		g.reconcile()
		g.wantCondition(api.ConditionDeletionBlocked, "True")
		g.restoreDriver(memory, other)
		g.wantNothing()
	})
}

// TestCopiedObject checks that a copy of another cluster's VirtualMachine, with its finalizer, its
// binding and perhaps its status, becomes a VirtualMachine like any other: bound here in one write,
// and without any data of the original's server.
func TestCopiedObject(t *testing.T) {
	copied := api.Binding{Driver: "fake", EngineID: "elsewhere", UID: "uid-2"}
	reported := func(s *api.VirtualMachineStatus) {
		vmtest.WithServer("id-2", driver.StateStopped)(s)
		vmtest.WithOperation(api.OperationRestart, time.Hour, "run-2")(s)
		s.ObservedGeneration, s.Driver, s.Binding = 9, "fake", &copied
		s.RestartCount, s.PendingFields, s.Server.StoppedRun = 4, []string{"image"}, "run-2"
	}
	for name, b := range map[string]*framework.VMBuilder{
		"without its status":     framework.NewVM("vm").Bound(policy.AnnotationOf(copied)),
		"with its status":        framework.NewVM("vm").Bound(policy.AnnotationOf(copied)).Status(reported),
		"with its status alone":  framework.NewVM("vm").Status(reported),
		"of a driver not here":   framework.NewVM("vm").Bound("xen/elsewhere/uid-2"),
		"of the same engine":     framework.NewVM("vm").Bound("fake/same/uid-2"),
		"and no finalizer of it": framework.NewVM("vm").Bound(policy.AnnotationOf(copied)).Meta(func(m *metav1.ObjectMeta) { m.Finalizers = nil }),
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			g.create(b)
			_, err := g.pass()
			assert.NoError(t, err)
			g.wantOwnBinding()
			g.reconcile()
			g.wantPhase(api.PhaseActive, api.ReasonRunning)
			g.wantOwnBinding()
			s := g.vm().Status
			assert.True(t, s.RestartCount == 0 && s.PendingFields == nil && s.Server.ID == g.server().ID, "the status has something of the original: %+v", s)
			g.wantWrites(0, func() { g.reconcile() })
		})
	}
}

// wantOwnBinding checks that the VM is bound to the engine of the rig, by a binding with the VM's name.
func (g *rig) wantOwnBinding() {
	g.t.Helper()
	want := api.Binding{Driver: "fake", EngineID: g.inv.Get("").EngineID, UID: "uid-1"}
	vm := g.vm()
	if vm.Annotations[api.AnnotationBound] != policy.AnnotationOf(want) || len(vm.Finalizers) != 1 || vm.Status.Binding == nil || *vm.Status.Binding != want {
		g.t.Errorf("bound to %q, finalizers %v, status %+v: want %+v", vm.Annotations[api.AnnotationBound], vm.Finalizers, vm.Status.Binding, want)
	}
}

// TestBindingOfAnotherObject checks that the VM's binding wins over the binding of another object,
// whether in the status or the annotation, and that the server keeps running.
func TestBindingOfAnotherObject(t *testing.T) {
	for name, change := range map[string]func(*api.VirtualMachine){
		"in the annotation": func(vm *api.VirtualMachine) { vm.Annotations[api.AnnotationBound] = "fake/elsewhere/uid-2" },
		"in the status": func(vm *api.VirtualMachine) {
			vm.Status.Binding = &api.Binding{Driver: "fake", EngineID: "elsewhere", UID: "uid-2"}
		},
		"of a driver not here": func(vm *api.VirtualMachine) {
			vm.Status.Binding = &api.Binding{Driver: "xen", EngineID: "elsewhere", UID: "uid-2"}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
			run, vm := g.server().Run, g.vm()
			change(vm)
			assert.NoError(t, g.api.Status().Update(t.Context(), vm.DeepCopy()))
			vm.ResourceVersion = g.vm().ResourceVersion
			assert.NoError(t, g.api.Update(t.Context(), vm))
			g.newReconciler()
			g.reconcile()
			g.wantPhase(api.PhaseActive, api.ReasonRunning)
			g.wantOwnBinding()
			got := g.server().Run
			assert.True(t, got == run, "run %s was %s", got, run)
		})
	}
}

// TestDeletedCopy checks that a copy that is deleted before it was bound is removed once every driver
// here has said that it does not have a server of the copy.
func TestDeletedCopy(t *testing.T) {
	for name, driverName := range map[string]string{"of a driver that runs": "", "of a driver that does not": "xen"} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, fake.Options{})
			memory, other := g.addDriver()
			b := framework.NewVM("vm").Bound("fake/elsewhere/uid-2")
			if driverName != "" {
				b.Driver(driverName)
				g.r.Driver, g.r.Inventory = "", nil
			}
			g.create(b)
			memory.SetAvailable(false)
			g.delete()
			g.reconcile()
			g.wantCondition(api.ConditionDeletionBlocked, "True")
			g.restoreDriver(memory, other)
			vm := g.vm()
			assert.True(t, vm == nil, "it is still there: %+v", vm)
		})
	}
}

// TestBindingWithoutUID checks that a binding without a UID is refused, and never treated as absent:
// no server is created, changed or removed, and the finalizer stays, until the UID is set as the
// message describes.
func TestBindingWithoutUID(t *testing.T) {
	for name, hasStatus := range map[string]bool{"in annotation and status": true, "in the annotation alone": false} {
		for _, isDeleted := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, deleted %v", name, isDeleted), func(t *testing.T) {
				g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
				run, calls := g.server().Run, g.engine.calls
				own := g.vm().Annotations[api.AnnotationBound]
				g.removeUID(hasStatus)
				g.newReconciler()
				if isDeleted {
					g.delete()
				}
				g.reconcile()
				g.wantWrites(0, func() { g.reconcile() })
				refused := g.vm()
				if refused.Status.Reason != api.ReasonEngineMismatch && !isDeleted || !strings.Contains(refused.Status.Message, "set the annotation cloudnative.tw/bound to <driver>/<engine id>/uid-1") {
					t.Errorf("the status says %s: %s", refused.Status.Reason, refused.Status.Message)
				}
				assert.True(t, g.server().Run == run && g.engine.calls == calls && g.vm().Annotations[api.AnnotationBound] != own,
					"run %s was %s, %d calls, bound to %q", g.server().Run, run, g.engine.calls-calls, g.vm().Annotations[api.AnnotationBound])
				vm := g.vm()
				vm.Annotations[api.AnnotationBound] = own
				assert.NoError(t, g.api.Update(t.Context(), vm))
				_, ok := queue.UpdatePriority(refused, g.vm())
				assert.True(t, ok, "the annotation that was set queues nothing")
				g.reconcile()
				if isDeleted {
					g.wantNothing()
					return
				}
				g.wantPhase(api.PhaseActive, api.ReasonRunning)
				g.wantOwnBinding()
			})
		}
	}
}

// removeUID removes the UID from the binding.
func (g *rig) removeUID(hasStatus bool) {
	g.t.Helper()
	vm := g.vm()
	vm.Annotations[api.AnnotationBound] = "fake/" + g.inv.Get("").EngineID
	assert.NoError(g.t, g.api.Update(g.t.Context(), vm))
	if vm.Status.Binding.UID = ""; !hasStatus {
		vm.Status.Binding = nil
	}
	assert.NoError(g.t, g.api.Status().Update(g.t.Context(), vm))
}

// TestCreationAfterABinding checks that a server that another leader has created, and not
// reported, is looked for before one is created.
func TestCreationAfterABinding(t *testing.T) {
	g := newRig(t, fake.Options{})
	g.create(framework.NewVM("vm").Bound("fake/" + g.inv.Get("").EngineID + "/uid-1"))
	g.engine.failQueries.Store(true)
	g.reconcile()
	assert.True(t, g.engine.calls == 0, "a server was created although the engine does not say whether there is one")
}

// restoreDriver makes the engine of another driver answer again, and reconciles at the next check of a deletion.
func (g *rig) restoreDriver(memory *fake.Memory, other *inventory.Inventory) {
	g.t.Helper()
	memory.SetAvailable(true)
	g.eventually("the other engine answers", func() bool {
		g.clock.Step(time.Second)
		return other.Get("x").Answer == inventory.Gone
	})
	g.clock.Step(policy.DeletionCheckPeriod)
	g.reconcile()
}
