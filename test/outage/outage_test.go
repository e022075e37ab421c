// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// testEngine is an engine that can be stopped and started.
type testEngine struct {
	driver      string
	stop, start func()
}

// startEnvironment runs a controller on an engine that can be stopped.
func startEnvironment(t *testing.T, driver string) (*testenv.Environment, testEngine) {
	t.Helper()
	w := testenv.StartVirtual(t)
	if driver == "fake" {
		w.RunController(t)
		return w, testEngine{driver, func() { w.SetFaults(t, `"*": {engineUnavailable: true}`) }, func() { w.SetFaults(t, "") }}
	}
	proxy := framework.NewDockerProxy(t)
	w.StartControllerProcess(t, proxy.Env())
	return w, testEngine{driver, proxy.Disconnect, proxy.Restore}
}

func otherDriver(driver string) string {
	if driver == "fake" {
		return "docker"
	}
	return "fake"
}

// TestOutage checks that the VMs of a stopped engine become Unknown, that those of
// the other engine are not affected, and that all recover when the engine returns.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, engine := startEnvironment(t, name)
			kept, stopped := w.CreateActiveVM(t, newSmallVM("kept", name)), w.CreateActiveVM(t, newSmallVM("stopped", name))
			elsewhere := w.CreateActiveVM(t, newSmallVM("elsewhere", otherDriver(name)))
			w.UpdateVM(t, stopped, func(vm *api.VirtualMachine) { vm.Spec.Action = api.ActionStopped })
			stopped = w.WaitForVM(t, stopped, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked))

			begin := time.Now()
			engine.stop()
			for _, vm := range []*api.VirtualMachine{kept, stopped} {
				w.WaitForVM(t, vm, framework.HasPhase(api.PhaseUnknown, api.ReasonEngineUnavailable), sameServer(vm),
					framework.HasCondition(api.ConditionObserved, metav1.ConditionFalse), framework.HasCondition(api.ConditionReady, metav1.ConditionUnknown))
			}
			took := time.Since(begin)
			assert.True(t, took >= reportDelay-100*time.Millisecond, "the outage was reported after %s, want 5 s at least", took)
			during := w.CreateVM(t, newSmallVM("during", name))
			unaffected := w.CreateActiveVM(t, newSmallVM("unaffected", otherDriver(name)))
			w.CheckVM(t, elsewhere, framework.IsActive, sameServer(elsewhere))
			w.WaitForVM(t, during, framework.HasPhase(api.PhaseUnknown, api.ReasonEngineUnavailable))

			engine.start()
			w.WaitForVM(t, kept, framework.IsActive, sameServer(kept))
			w.WaitForVM(t, stopped, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked), sameServer(stopped))
			w.WaitForVM(t, during, framework.IsActive)
			for _, vm := range []*api.VirtualMachine{kept, stopped, during, elsewhere, unaffected} {
				w.CheckServers(t, vm, 1)
			}
		})
	}
}

// reportDelay is the duration of an outage after which Drover reports VMs as Unknown.
const reportDelay = 5 * time.Second

// TestShortOutageIsNotReported checks that neither a short outage nor a restart of the
// controller shows in the status.
func TestShortOutageIsNotReported(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	proxy := framework.NewDockerProxy(t)
	controller := w.StartControllerProcess(t, proxy.Env())
	vm := w.CreateActiveVM(t, newSmallVM("vm", "docker"))
	var history *testenv.VMHistory
	assert.Eventually(t, "an outage is short, which it may not be on a busy host", func(testing.TB) error {
		vm = resizeVM(t, w, vm, "100m")
		history = w.RecordHistory(t, vm)
		begin := time.Now()
		proxy.Disconnect()
		w.WaitForLog(t, controller, "Engine lost")
		proxy.Restore()
		resizeVM(t, w, vm, "200m")
		lasted := time.Since(begin)
		controller.MustStop()
		controller = w.StartControllerProcess(t, proxy.Env())
		return assert.ErrorUnless(lasted <= reportDelay, "the outage lasted %s", lasted)
	})
	vm = resizeVM(t, w, vm, "300m")
	for _, version := range history.WaitForVersion(t, vm) {
		assert.True(t, version.Status.Phase == api.PhaseActive, "version %s was %s", version.ResourceVersion, framework.FormatStatus(version))
	}
	assert.True(t, vm.Status.RestartCount == 0, "the server was restarted: %s", framework.FormatStatus(vm))
}

// resizeVM changes the CPU and waits until the change is applied.
func resizeVM(t *testing.T, w *testenv.Environment, vm *api.VirtualMachine, cpu string) *api.VirtualMachine {
	t.Helper()
	w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceCPU] = resource.MustParse(cpu) })
	return w.WaitForVM(t, vm, framework.IsActive, sameServer(vm))
}

// TestDeletionDuringOutage checks that a deletion waits, says why, and
// completes when the engine returns.
func TestDeletionDuringOutage(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, engine := startEnvironment(t, name)
			vm, failing := w.CreateActiveVM(t, newSmallVM("vm", name)), w.CreateVM(t, newSmallVM("failing", name).Resource(api.ResourceCPU, "4000"))
			// A VM that no controller has bound yet would be removed immediately.
			if name == "docker" {
				w.WaitForVM(t, failing, framework.HasPhase(api.PhaseFailed, api.ReasonExhausted))
			} else {
				w.WaitForVM(t, failing, framework.IsActive)
			}
			engine.stop()
			w.DeleteVM(t, vm)
			w.DeleteVM(t, failing)
			for _, vm := range []*api.VirtualMachine{vm, failing} {
				w.WaitForVM(t, vm, framework.HasPhase(api.PhaseTerminating, api.ReasonEngineUnavailable),
					framework.HasCondition(api.ConditionDeletionBlocked, metav1.ConditionTrue), framework.HasMessage("may still be there"), framework.HasMessage("unreachable"))
			}
			engine.start()
			for _, vm := range []*api.VirtualMachine{vm, failing} {
				w.WaitForDeletion(t, vm)
				w.CheckServers(t, vm, 0)
			}
		})
	}
}

// TestEngineMismatch checks that Drover draws no conclusions about a server from
// the answers of another engine.
func TestEngineMismatch(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	first := w.RunController(t, "--vm-driver=fake")
	vm, doomed := w.CreateActiveVM(t, newSmallVM("vm", "fake")), w.CreateActiveVM(t, newSmallVM("doomed", "fake"))
	first.MustStop(t)

	for message, args := range map[string][]string{
		"the fake engine that answers is": {"--vm-driver=fake", "--fake-dir=" + t.TempDir()},
		"driver fake does not run here":   {"--vm-driver=docker"},
	} {
		another := w.RunController(t, args...)
		w.WaitForVM(t, vm, framework.HasPhase(api.PhaseUnknown, api.ReasonEngineMismatch), sameServer(vm), framework.HasMessage("bound to fake/"), framework.HasMessage(message),
			framework.HasCondition(api.ConditionObserved, metav1.ConditionFalse))
		w.DeleteVM(t, doomed)
		w.WaitForVM(t, doomed, framework.HasPhase(api.PhaseTerminating, api.ReasonEngineMismatch), framework.HasMessage(message),
			framework.HasCondition(api.ConditionDeletionBlocked, metav1.ConditionTrue))
		another.MustStop(t)
		if len(w.ReadFakeServers(t)) != 2 {
			t.Errorf("%s: %d servers are left, want 2", message, len(w.ReadFakeServers(t)))
		}
	}

	w.RunController(t, "--vm-driver=fake")
	w.WaitForVM(t, vm, framework.IsActive, sameServer(vm))
	w.WaitForDeletion(t, doomed)
	if len(w.ReadFakeServers(t)) != 1 {
		t.Errorf("servers %v, want one", w.ReadFakeServers(t))
	}
}
