// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// addDriver adds a second driver to the rig, named other, with its own engine.
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
	if vm := g.vm(); len(vm.Finalizers) != 0 || len(g.memory.Records()) != 0 {
		t.Errorf("bound to %q, servers %v", vm.Annotations[api.AnnotationBound], g.memory.Records())
	}
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

// replace is kubectl replace with the user's manifest.
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
	older := func(vm *api.VirtualMachine) { vm.Status.Binding = nil }
	tests := map[string]struct {
		change func(*api.VirtualMachine)
		status func(*api.VirtualMachine)
	}{
		"all of it lost":               {func(*api.VirtualMachine) {}, nil},
		"another binding":              {func(vm *api.VirtualMachine) { vm.Annotations = map[string]string{api.AnnotationBound: "other/x"} }, nil},
		"a status of an older version": {func(*api.VirtualMachine) {}, older},
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
			if vm.Annotations[api.AnnotationBound] != bound || len(vm.Finalizers) != 1 || policy.AnnotationOf(*vm.Status.Binding) != bound {
				t.Errorf("bound to %q, status %v, finalizers %v: want %q", vm.Annotations[api.AnnotationBound], vm.Status.Binding, vm.Finalizers, bound)
			}
			if len(memory.Records()) != 0 || g.server().Run != run {
				t.Errorf("a second server %v, run %s was %s", memory.Records(), g.server().Run, run)
			}
		})
	}
}

// TestDeletionWithoutABinding checks that every driver must confirm that it has no
// server, since the engine of the server is unknown.
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
		if c == nil || !strings.Contains(c.Message, "driver other has the server") || !strings.Contains(c.Message, api.AnnotationBound) {
			t.Fatalf("DeletionBlocked is %+v", c)
		}
		if len(memory.Records()) != 1 {
			t.Error("the server is gone")
		}
		// The solution that the message names.
		vm = g.vm()
		vm.Annotations = map[string]string{api.AnnotationBound: "other/" + other.Get("x").EngineID}
		assert.NoError(t, g.api.Update(t.Context(), vm))
		g.asOther(other, func() {
			g.eventually("the VM is gone", func() bool {
				g.clock.Step(time.Second)
				g.reconcile()
				return g.vm() == nil
			})
		})
		if len(memory.Records()) != 0 {
			t.Error("the server is left")
		}
	})
	t.Run("another driver cannot be queried", func(t *testing.T) {
		g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
		memory, other := g.addDriver()
		memory.SetAvailable(false)
		lose(g)
		g.reconcile()
		g.wantCondition(api.ConditionDeletionBlocked, "True")
		memory.SetAvailable(true)
		g.eventually("the other engine answers", func() bool {
			g.clock.Step(time.Second)
			return other.Get("x").Answer == inventory.Gone
		})
		g.clock.Step(policy.DeletionCheckPeriod)
		g.reconcile()
		g.wantNothing()
	})
}
