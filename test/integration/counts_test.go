// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
	"cloudnative.tw/drover/test/tier"
)

// TestDockerCreateWrites counts the writes of a creation. Starting a container takes so
// long that the step in progress is reported too. So there may be writes of the
// finalizer, the step in progress, and the result. TestWritesPerAction of
// internal/controller counts the writes with the fake driver exactly.
func TestDockerCreateWrites(t *testing.T) {
	t.Parallel()
	const most = 3
	w := testenv.StartVirtual(t)
	w.RunController(t, "--vm-driver=docker", "--usage-period=1h") // a sample of the usage would be one more write
	vm := w.CreateVM(t, newSmallVM("few", "default", "docker"))
	history := w.RecordHistory(t, vm)
	active := w.WaitForVM(t, vm, framework.IsActive)
	w.CreateActiveVM(t, newSmallVM("later", "default", "docker")) // long enough for late writes for the first VM
	now := w.GetVM(t, vm)
	assert.True(t, now.ResourceVersion == active.ResourceVersion, "the VM was written after it was Active: %s", framework.FormatStatus(now))
	all := history.WaitForVersion(t, active)
	if writes := len(all) - 1; writes > most {
		for _, version := range all {
			t.Log(framework.FormatStatus(version))
		}
		t.Errorf("%d writes, want at most %d", writes, most)
	}
}

const (
	livesAtATime = 50
	// tolerance is for connections, timers and the like, whose number varies.
	tolerance = 20
)

// TestGoroutinesEnd checks that creating and deleting VMs does not leave goroutines and open
// descriptors in a controller. It compares with their number after the first VMs, which open what
// the controller keeps. There are 50 VMs in the gate, and 1,000 in the full tier.
func TestGoroutinesEnd(t *testing.T) {
	t.Parallel()
	turns := 1
	if tier.IsFull() {
		turns = 20
	}
	w := testenv.StartVirtual(t)
	controller := w.StartControllerProcess(t, nil, "--vm-driver=fake", "--fake-dir=", testenv.AnyMetricsAddress)
	runLifecycles(t, w, "warm")
	before := controller.ReadMetrics(t)
	for n := range turns {
		runLifecycles(t, w, fmt.Sprintf("turn-%d", n))
	}
	for _, name := range []string{"go_goroutines", "process_open_fds"} {
		assert.Eventually(t, name+" is as before the VMs", func(t testing.TB) error {
			now := controller.ReadMetrics(t)
			if earlier, current := before.Sum(name), now.Sum(name); earlier == 0 || current > earlier+tolerance {
				return fmt.Errorf("there are %v, and were %v before", current, earlier)
			}
			return nil
		})
	}
}

// runLifecycles creates and deletes VMs.
func runLifecycles(t *testing.T, w *testenv.Environment, name string) {
	t.Helper()
	vms := w.VMsIn(w.Namespace)
	for n := range livesAtATime {
		w.CreateVM(t, newSmallVM(fmt.Sprintf("%s-%d", name, n), metav1.NamespaceDefault, "fake").ReadinessProbe(80))
	}
	waitForAll := func(what string, want func(api.Phase) bool) {
		assert.Eventually(t, what, func(testing.TB) error {
			all, err := vms.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, vm := range all.Items {
				if !want(vm.Status.Phase) {
					return fmt.Errorf("%s is %q", vm.Name, vm.Status.Phase)
				}
			}
			return nil
		})
	}
	waitForAll("all are Active", func(phase api.Phase) bool { return phase == api.PhaseActive })
	assert.NoError(t, vms.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}))
	waitForAll("all are gone", func(api.Phase) bool { return false })
}
