// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// TestDockerCreateWrites counts writes. The start of a container takes longer than a
// step that is reported only by its result, so a creation may write the finalizer,
// the step in progress, and the result. For the fake driver TestWritesPerAction of
// internal/controller counts exactly.
func TestDockerCreateWrites(t *testing.T) {
	t.Parallel()
	const most = 3
	w := testenv.Start(t)
	w.RunController(t, "--vm-driver=docker", "--usage-period=1h") // the first sample is one more write
	vm := w.CreateVM(t, newSmallVM("few", "default", "docker"))
	history := w.RecordHistory(t, vm)
	active := w.WaitForVM(t, vm, framework.IsActive)
	framework.Consistently(t, 3*time.Second, time.Second, "nothing more is written", func() error {
		if now := w.GetVM(t, vm); now.ResourceVersion != active.ResourceVersion {
			return fmt.Errorf("after Active came %s", framework.FormatStatus(now))
		}
		return nil
	})
	all := history.WaitForVersion(t, active)
	if writes := len(all) - 1; writes > most {
		for _, one := range all {
			t.Log(framework.FormatStatus(one))
		}
		t.Errorf("%d writes, want at most %d", writes, most)
	}
}

const (
	lifecycles   = 1000
	livesAtATime = 100
	// spareGoroutines is what connections, timers and the like may come and go by.
	spareGoroutines = 20
)

// TestGoroutinesEnd checks that a controller has no more goroutines after
// creating and deleting 1,000 VMs than after the first 100. It keeps the machine so
// busy that no other test should run beside it.
func TestGoroutinesEnd(t *testing.T) {
	w := testenv.Start(t)
	address := framework.FreeAddress(t)
	w.StartControllerProcess(t, nil, "--vm-driver=fake", "--fake-dir=", "--metrics-bind-address="+address)
	runLifecycles(t, w, "warm")
	before := countGoroutines(t, address)
	for n := range lifecycles / livesAtATime {
		runLifecycles(t, w, fmt.Sprintf("turn-%d", n))
	}
	assert.Eventually(t, "the goroutines of 1,000 VMs have ended", func(t testing.TB) error {
		if now := countGoroutines(t, address); now > before+spareGoroutines {
			return fmt.Errorf("%v, before it were %v", now, before)
		}
		return nil
	})
}

// runLifecycles creates and deletes VMs.
func runLifecycles(t *testing.T, w *testenv.Environment, name string) {
	t.Helper()
	vms := w.VMClient.CloudnativeV1alpha1().VirtualMachines(metav1.NamespaceDefault)
	for n := range livesAtATime {
		w.CreateVM(t, newSmallVM(fmt.Sprintf("%s-%d", name, n), metav1.NamespaceDefault, "fake").ReadinessProbe(80))
	}
	left := func(want func(phase string) bool) func() error {
		return func() error {
			all, err := vms.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, vm := range all.Items {
				if !want(string(vm.Status.Phase)) {
					return fmt.Errorf("%s is %q", vm.Name, vm.Status.Phase)
				}
			}
			return nil
		}
	}
	assert.Eventually(t, "all are Active", func(testing.TB) error { return left(func(phase string) bool { return phase == "Active" })() })
	if err := vms.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	assert.Eventually(t, "all are gone", func(testing.TB) error { return left(func(string) bool { return false })() })
}

// countGoroutines reads the controller's own count.
func countGoroutines(t testing.TB, address string) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), framework.StepTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	page, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		t.Fatal(err)
	}
	return framework.Metrics(page).Sum("go_goroutines")
}
