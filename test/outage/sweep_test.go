// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// deleteWithoutController deletes a VM and removes its finalizer by hand, so that its server
// is left.
func deleteWithoutController(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine) {
	t.Helper()
	w.DeleteVM(t, vm)
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Finalizers = nil })
	w.WaitForDeletion(t, vm)
}

// TestOrphan checks that a server whose VM was removed without Drover is removed
// after the grace period, on every engine, and that an event reports it.
func TestOrphan(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.StartVirtual(t)
			first := w.RunController(t)
			vm, kept := w.CreateActiveVM(t, newSmallVM("vm", name)), w.CreateActiveVM(t, newSmallVM("kept", name))
			first.MustStop(t)
			deleteWithoutController(t, w, vm)
			w.CheckServers(t, vm, 1)

			begin := time.Now()
			w.RunController(t, "--orphan-grace=3s")
			w.WaitForServers(t, vm, 0)
			took := time.Since(begin)
			assert.True(t, took >= 3*time.Second, "the server was removed after %s, before the end of the grace period", took)
			assert.Contains(t, "the event says", w.WaitForEvent(t, vm, api.EventOrphanDeleted).Note, "no VirtualMachine")
			w.CheckServers(t, kept, 1)
			w.CheckVM(t, kept, framework.IsActive, sameServer(kept))
		})
	}
}

// TestOrphanToRetain checks that the server of a VM with deletionPolicy Retain is kept if the
// finalizer is removed, as kubectl replace does, and the VM is deleted before Drover has
// restored the finalizer.
func TestOrphanToRetain(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := testenv.StartVirtual(t)
			c := w.StartControllerProcess(t, nil, "--orphan-grace=3s")
			vm := w.CreateActiveVM(t, newSmallVM("vm", name).DeletionPolicy(api.DeletionRetain))
			assert.NoError(t, syscall.Kill(c.PID(), syscall.SIGSTOP))
			w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Finalizers = nil })
			w.DeleteVM(t, vm)
			w.WaitForDeletion(t, vm)
			assert.NoError(t, syscall.Kill(c.PID(), syscall.SIGCONT))
			w.WaitForEvent(t, vm, api.EventOrphanReleased)
			assert.Equal(t, "servers are left", len(w.ReadReleasedServers(t))+len(testenv.ListContainers(t, vm.UID)), 1)
		})
	}
}

// createOrphans adds servers without a VM to the fake engine.
func createOrphans(t *testing.T, w *testenv.Environment, n int) {
	t.Helper()
	for i := range n {
		w.EditFakeServer(t, types.UID(fmt.Sprintf("orphan-%d", i)), func(r *fake.Record) {
			r.Namespace, r.Name, r.State = w.Namespace, fmt.Sprintf("orphan-%d", i), driver.StateRunning
		})
	}
}

// TestSweepFreezes checks that the sweep freezes when suspiciously many servers look
// orphaned, until a person allows it.
func TestSweepFreezes(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	first := w.RunController(t, "--vm-driver=fake")
	vm := w.CreateActiveVM(t, newSmallVM("vm", "fake"))
	first.MustStop(t)
	createOrphans(t, w, 4)

	frozen := w.StartControllerProcess(t, nil, "--vm-driver=fake", "--orphan-grace=1s", testenv.AnyMetricsAddress)
	e := w.WaitForEvent(t, nil, api.EventOrphanSweepFrozen)
	assert.True(t, strings.Contains(e.Note, "4 of 5") && strings.Contains(e.Note, "--orphan-max=4"), "the event says %q", e.Note)
	page := frozen.ReadMetrics(t)
	up, n := page.Sum("drover_orphan_sweep_frozen", `driver="fake"`), page.Sum("drover_orphan_servers", `driver="fake"`)
	assert.True(t, up == 1 && n == 4, "frozen %v, orphans %v, want 1 and 4", up, n)
	lists := func(t testing.TB) float64 {
		return frozen.ReadMetrics(t).Sum("drover_driver_call_duration_seconds_count", `driver="fake"`, `method="List"`)
	}
	before := lists(t)
	assert.Eventually(t, "more sweeps than the grace period has seconds", func(t testing.TB) error {
		if more := lists(t) - before; more < 4 {
			return fmt.Errorf("there were %v more", more)
		}
		return nil
	})
	frozen.MustStop()
	assert.Equal(t, "servers are left", len(w.ReadFakeServers(t)), 5)

	w.RunController(t, "--vm-driver=fake", "--orphan-grace=1s", "--orphan-max=4")
	assert.Eventually(t, "the orphans are removed", func(t testing.TB) error {
		if n := len(w.ReadFakeServers(t)); n != 1 {
			return fmt.Errorf("%d servers are left", n)
		}
		return nil
	})
	w.WaitForVM(t, vm, framework.IsActive, sameServer(vm))
}

// TestTwoInstallations checks that two installations on the same engines do not touch
// each other's servers, not even by sweeps.
func TestTwoInstallations(t *testing.T) {
	t.Parallel()
	one, two := testenv.StartVirtual(t), testenv.StartVirtual(t)
	two.FakeDir = one.FakeDir
	for _, w := range []*testenv.Environment{one, two} {
		w.RunController(t, "--orphan-grace=1s")
	}
	var ones, twos []*api.VirtualMachine
	for _, name := range drivers {
		ones = append(ones, one.CreateActiveVM(t, newSmallVM("vm-"+name, name)))
		twos = append(twos, two.CreateActiveVM(t, newSmallVM("vm-"+name, name)))
	}
	// Each removes an orphan, which shows that its sweep has run.
	for _, w := range []*testenv.Environment{one, two} {
		uid := types.UID("orphan-of-" + w.ClusterID)
		w.EditFakeServer(t, uid, func(r *fake.Record) { r.Namespace, r.Name = w.Namespace, "orphan" })
		gone := newSmallVM("orphan", "fake").UID(string(uid)).Obj()
		w.WaitForServers(t, gone, 0)
	}
	// Both ignore the other's servers.
	for n := range ones {
		one.DeleteVM(t, ones[n])
		one.WaitForDeletion(t, ones[n])
		one.CheckServers(t, ones[n], 0)
		two.CheckServers(t, twos[n], 1)
		two.CheckVM(t, twos[n], framework.IsActive, sameServer(twos[n]))
	}
}
