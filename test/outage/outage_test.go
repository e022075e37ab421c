// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"errors"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/rig"
	"cloudnative.tw/drover/test/vmtest"
)

// testEngine is an engine that can be stopped and started.
type testEngine struct {
	driver      string
	stop, start func()
}

// startEnvironment runs a controller on an engine that can be stopped.
func startEnvironment(t *testing.T, driver string) (*rig.World, testEngine) {
	t.Helper()
	w := rig.Start(t)
	if driver == "fake" {
		w.Run(t)
		return w, testEngine{driver, func() { w.Faults(t, `"*": {engineUnavailable: true}`) }, func() { w.Faults(t, "") }}
	}
	proxy := vmtest.NewProxy(t)
	w.Spawn(t, proxy.Env())
	return w, testEngine{driver, proxy.Cut, proxy.Restore}
}

func otherDriver(driver string) string {
	if driver == "fake" {
		return "docker"
	}
	return "fake"
}

// TestOutage checks that the VMs of a stopped engine become Unknown, that those of
// the other engine continue, and that all is as before when it returns.
func TestOutage(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, engine := startEnvironment(t, name)
			kept, stopped := w.Active(t, newSmallVM("kept", name)), w.Active(t, newSmallVM("stopped", name))
			elsewhere := w.Active(t, newSmallVM("elsewhere", otherDriver(name)))
			w.Edit(t, stopped, func(vm *api.VirtualMachine) { vm.Spec.Action = api.ActionStopped })
			stopped = w.Await(t, stopped, rig.Soon, rig.Phase(api.PhaseStopped, api.ReasonStoppedAsAsked))

			engine.stop()
			begin := time.Now()
			for _, vm := range []*api.VirtualMachine{kept, stopped} {
				w.Await(t, vm, rig.Soon, rig.Phase(api.PhaseUnknown, api.ReasonEngineUnavailable), sameServer(vm),
					rig.Condition(api.ConditionObserved, metav1.ConditionFalse), rig.Condition(api.ConditionReady, metav1.ConditionUnknown))
			}
			if took := time.Since(begin); took < reportDelay-100*time.Millisecond {
				t.Errorf("the outage was shown after %s, want not before it has lasted 5 s", took)
			}
			meanwhile := w.Create(t, newSmallVM("meanwhile", name))
			unaffected := w.Active(t, newSmallVM("unaffected", otherDriver(name)))
			w.Await(t, elsewhere, time.Second, rig.Active, sameServer(elsewhere))
			w.Await(t, meanwhile, rig.Soon, rig.Phase(api.PhaseUnknown, api.ReasonEngineUnavailable))

			engine.start()
			w.Await(t, kept, rig.Soon, rig.Active, sameServer(kept))
			w.Await(t, stopped, rig.Soon, rig.Phase(api.PhaseStopped, api.ReasonStoppedAsAsked), sameServer(stopped))
			w.Await(t, meanwhile, rig.Soon, rig.Active)
			for _, vm := range []*api.VirtualMachine{kept, stopped, meanwhile, elsewhere, unaffected} {
				w.HasServers(t, vm, 1, time.Second)
			}
		})
	}
}

// TestShortOutageIsNotReported checks that the status shows neither a short outage nor
// a restart of the controller.
func TestShortOutageIsNotReported(t *testing.T) {
	t.Parallel()
	w := rig.Start(t)
	proxy := vmtest.NewProxy(t)
	controller := w.Spawn(t, proxy.Env())
	vm := w.Active(t, newSmallVM("vm", "docker"))
	history := w.Record(t, vm)
	lasted := interruptEngine(t, w, proxy, controller, vm)
	// On a busy machine the engine may be back too late.
	for tries := 1; lasted > reportDelay && tries < 5; tries++ {
		t.Logf("the outage lasted %s: once more", lasted)
		controller.MustStop()
		controller = w.Spawn(t, proxy.Env())
		vm = resizeVM(t, w, vm, "100m")
		history = w.Record(t, vm)
		lasted = interruptEngine(t, w, proxy, controller, vm)
	}
	controller.MustStop()
	w.Spawn(t, proxy.Env())
	vm = resizeVM(t, w, vm, "300m")
	for _, version := range history.Until(t, vm) {
		if version.Status.Phase != api.PhaseActive {
			t.Errorf("an outage of %s was shown: version %s was %s", lasted, version.ResourceVersion, rig.Show(version))
		}
	}
	if vm.Status.RestartCount != 0 {
		t.Errorf("it was started again: %s", rig.Show(vm))
	}
}

// reportDelay is how long an outage lasts before VMs become Unknown.
const reportDelay = 5 * time.Second

// interruptEngine cuts a controller's connection to the engine, and returns how long it was
// cut at most.
func interruptEngine(t *testing.T, w *rig.World, proxy *vmtest.Proxy, controller *rig.Child, vm *api.VirtualMachine) time.Duration {
	t.Helper()
	begin := time.Now()
	proxy.Cut()
	w.AwaitLog(t, controller, "Engine lost")
	proxy.Restore()
	resizeVM(t, w, vm, "200m")
	return time.Since(begin)
}

// resizeVM changes the CPU and waits until that is applied.
func resizeVM(t *testing.T, w *rig.World, vm *api.VirtualMachine, cpu string) *api.VirtualMachine {
	t.Helper()
	w.Edit(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceCPU] = parseQuantity(cpu) })
	return w.Await(t, vm, rig.Soon, rig.Active, sameServer(vm))
}

// TestDeletionDuringOutage checks that a deletion waits, says why, and
// completes when the engine returns.
func TestDeletionDuringOutage(t *testing.T) {
	t.Parallel()
	for _, name := range drivers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, engine := startEnvironment(t, name)
			vm, failing := w.Active(t, newSmallVM("vm", name)), w.Create(t, newSmallVM("failing", name).Resource(api.ResourceCPU, "4000"))
			// One that no controller has bound yet would be removed immediately.
			if name == "docker" {
				w.Await(t, failing, rig.Soon, rig.Phase(api.PhaseFailed, api.ReasonExhausted))
			} else {
				w.Await(t, failing, rig.Soon, rig.Active)
			}
			engine.stop()
			w.Delete(t, vm)
			w.Delete(t, failing)
			for _, vm := range []*api.VirtualMachine{vm, failing} {
				w.Await(t, vm, rig.Soon, rig.Phase(api.PhaseTerminating, api.ReasonEngineUnavailable),
					rig.Condition(api.ConditionDeletionBlocked, metav1.ConditionTrue), rig.Says("may still be there"), rig.Says("out of reach"))
			}
			engine.start()
			for _, vm := range []*api.VirtualMachine{vm, failing} {
				w.AwaitGone(t, vm, rig.Soon)
				w.HasServers(t, vm, 0, time.Second)
			}
		})
	}
}

// TestEngineMismatch checks that another engine's answer proves nothing about
// a server on the first one.
func TestEngineMismatch(t *testing.T) {
	t.Parallel()
	w := rig.Start(t)
	first := w.Run(t, "--vm-driver=fake")
	vm, doomed := w.Active(t, newSmallVM("vm", "fake")), w.Active(t, newSmallVM("doomed", "fake"))
	first.MustStop(t)

	for message, args := range map[string][]string{
		"the fake engine that answers is": {"--vm-driver=fake", "--fake-dir=" + t.TempDir()},
		"driver fake does not run here":   {"--vm-driver=docker"},
	} {
		another := w.Run(t, args...)
		w.Await(t, vm, rig.Soon, rig.Phase(api.PhaseUnknown, api.ReasonEngineMismatch), sameServer(vm), rig.Says("bound to fake/"), rig.Says(message),
			rig.Condition(api.ConditionObserved, metav1.ConditionFalse))
		w.Delete(t, doomed)
		w.Await(t, doomed, rig.Soon, rig.Phase(api.PhaseTerminating, api.ReasonEngineMismatch), rig.Says(message),
			rig.Condition(api.ConditionDeletionBlocked, metav1.ConditionTrue))
		another.MustStop(t)
		if len(w.Fakes(t)) != 2 {
			t.Errorf("%s: %d servers are left, want 2", message, len(w.Fakes(t)))
		}
	}

	w.Run(t, "--vm-driver=fake")
	w.Await(t, vm, rig.Soon, rig.Active, sameServer(vm))
	w.AwaitGone(t, doomed, rig.Soon)
	if len(w.Fakes(t)) != 1 {
		t.Errorf("servers %v, want one", w.Fakes(t))
	}
}

// TestDeletionWhileCreating checks that such a deletion ends soon and leaves
// nothing, whatever becomes of the creation.
func TestDeletionWhileCreating(t *testing.T) {
	t.Parallel()
	w := rig.Start(t)
	w.Faults(t, `
slow: {latency: 2s}
fails: {failCreate: 1000000, kind: retry}
exhausted: {failCreate: 1000000, kind: exhausted}
invalid: {failCreate: 1000000, kind: invalid}
`)
	w.Run(t)
	for name, tc := range map[string]struct {
		check  rig.Check
		within time.Duration
	}{
		"slow":      {rig.Phase(api.PhaseCreating, api.ReasonCreating), 15 * time.Second},
		"fails":     {rig.Phase(api.PhaseFailed, api.ReasonOperationFailed), 5 * time.Second},
		"exhausted": {rig.Phase(api.PhaseFailed, api.ReasonExhausted), 5 * time.Second},
		"invalid":   {rig.Phase(api.PhaseFailed, api.ReasonInvalid), 5 * time.Second},
	} {
		vm := w.Create(t, newSmallVM(name, "fake"))
		w.Await(t, vm, rig.Soon, tc.check)
		w.Delete(t, vm)
		w.AwaitGone(t, vm, tc.within)
	}
	if all := w.Fakes(t); len(all) != 0 {
		t.Errorf("servers are left: %v", all)
	}
}

// TestLostResponse checks that a change which the engine made, but whose response
// was lost, is made once.
func TestLostResponse(t *testing.T) {
	t.Parallel()
	w := rig.Start(t)
	w.Faults(t, `vm: {succeedThenTimeout: true}`)
	w.Run(t)
	vm := w.Create(t, newSmallVM("vm", "fake"))
	var id string
	vmtest.Eventually(t, rig.Soon, "the server is made", func() error {
		r := w.Fake(t, vm.UID)
		if r == nil {
			return errors.New("there is none")
		}
		id = r.ID
		return nil
	})
	w.Faults(t, "") // a driver that never answers can have nothing confirmed
	w.Await(t, vm, rig.Soon, rig.Active, func(vm *api.VirtualMachine) error {
		if vm.Status.Server.ID != id {
			return fmt.Errorf("the server is %s, not %s", vm.Status.Server.ID, id)
		}
		return nil
	})
	w.HasServers(t, vm, 1, time.Second)
	w.Delete(t, vm)
	w.AwaitGone(t, vm, rig.Soon)
	w.HasServers(t, vm, 0, time.Second)
}
