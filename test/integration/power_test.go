// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

var drivers = []string{"docker", "fake"}

func setAction(action api.Action) func(*api.VirtualMachine) {
	return func(vm *api.VirtualMachine) { vm.Spec.Action = action }
}

// TestGuestIgnoringSIGTERM has a guest that ignores the request to stop, and is stopped by
// force when its grace period is over, not before. That it is not stopped later is in the
// tests of the controller's policy, with a clock of their own.
func TestGuestIgnoringSIGTERM(t *testing.T) {
	t.Parallel()
	const grace = 3 * time.Second
	stubborn := func(t *testing.T) *api.VirtualMachine {
		vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").Image(framework.GuestStubborn).GracePeriod(int64(grace.Seconds())))
		testenv.RequestFromGuest(t, vm, "/") // so that it is up and ignores signals
		return vm
	}
	notBefore := func(t *testing.T, took time.Duration) {
		if took < grace-time.Second {
			t.Errorf("it took %s, want %s", took, grace)
		}
	}
	t.Run("stopped", func(t *testing.T) {
		t.Parallel()
		vm := stubborn(t)
		history, begin := environment.RecordHistory(t, vm), time.Now()
		environment.UpdateVM(t, vm, setAction(api.ActionStopped))
		vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseStopped, api.ReasonStoppedAsAsked), framework.HasCondition(api.ConditionReady, metav1.ConditionTrue))
		notBefore(t, time.Since(begin))
		history.WaitFor(t, framework.HasPhase(api.PhaseActive, api.ReasonStopping), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
		if code := testenv.InspectServer(t, vm).State.ExitCode; code != 137 {
			t.Errorf("exit code %d, want 137", code)
		}
	})
	t.Run("deleted", func(t *testing.T) {
		t.Parallel()
		vm := stubborn(t)
		history, begin := environment.RecordHistory(t, vm), time.Now()
		environment.DeleteVM(t, vm)
		environment.WaitForDeletion(t, vm)
		notBefore(t, time.Since(begin))
		history.WaitFor(t, framework.HasPhase(api.PhaseTerminating, api.ReasonStopping))
		environment.CheckServers(t, vm, 0)
	})
}

// TestReadyReflectsTheLatestSpec checks that kubectl wait right after a change waits for
// the change, and that no version of the object is reported ready before.
func TestReadyReflectsTheLatestSpec(t *testing.T) {
	t.Parallel()
	vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").Image(framework.GuestStubborn).GracePeriod(2))
	testenv.RequestFromGuest(t, vm, "/")
	history := environment.RecordHistory(t, vm)
	environment.MustRunKubectl(t, "", "patch", "vm", "vm", "-n", vm.Namespace, "--type=merge", "-p", `{"spec":{"action":"stopped"}}`)
	environment.MustRunKubectl(t, "", "wait", "vm/vm", "-n", vm.Namespace, "--for=condition=Ready", "--timeout=60s")
	now := environment.GetVM(t, vm)
	if now.Status.Phase != api.PhaseStopped {
		t.Errorf("kubectl wait returned at %s", framework.FormatStatus(now))
	}
	for _, version := range history.WaitForVersion(t, now) {
		ready := meta.FindStatusCondition(version.Status.Conditions, api.ConditionReady)
		reported := ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == version.Generation
		if as := isAsSpecified(version); reported && !as {
			t.Errorf("version %s of generation %d calls itself ready: %s", version.ResourceVersion, version.Generation, framework.FormatStatus(version))
		}
	}
}

func isAsSpecified(vm *api.VirtualMachine) bool {
	return vm.Status.Phase == map[api.Action]api.Phase{api.ActionActive: api.PhaseActive, api.ActionStopped: api.PhaseStopped}[vm.Spec.Action]
}

// TestReadinessProbe checks that a VM becomes Ready only once the port answers.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").ReadinessProbe(81))
	vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonProbeFailing),
		framework.HasMessage(":81"), framework.HasMessage("refused"),
		framework.HasCondition(api.ConditionReady, metav1.ConditionFalse), framework.HasCondition(api.ConditionRunning, metav1.ConditionTrue))
	testenv.ExecInServer(t, vm, []string{"PORT=81"}, "/demo-guest")
	environment.WaitForVM(t, vm, framework.IsActive)
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.ReadinessProbe.TCPSocket.Port = 82 })
	environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseActive, api.ReasonProbeFailing), framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.ReadinessProbe = nil })
	environment.WaitForVM(t, vm, framework.IsActive)
}

// TestTakenPort checks that a host port that another server has is reported, and that the
// server starts once it is free.
func TestTakenPort(t *testing.T) {
	t.Parallel()
	ns, port := environment.CreateNamespace(t), framework.FreePort(t)
	holder := environment.CreateActiveVM(t, newSmallVM("one", ns, "docker").Port("http", 80, port))
	want := []api.PortStatus{{Name: "http", Protocol: api.ProtocolTCP, Port: 80, HostPort: port}}
	if !slices.Equal(holder.Status.Ports, want) {
		t.Errorf("status.ports is %+v, want %+v", holder.Status.Ports, want)
	}
	waiting := environment.CreateVM(t, newSmallVM("two", ns, "docker").Port("http", 80, port))
	environment.WaitForVM(t, waiting, framework.HasPhase(api.PhaseFailed, api.ReasonPortConflict),
		framework.HasMessage("spec.ports[0].hostPort"), framework.HasMessage(fmt.Sprint(port)))
	environment.DeleteVM(t, holder)
	waiting = environment.WaitForVM(t, waiting, framework.IsActive)
	if !slices.Equal(waiting.Status.Ports, want) {
		t.Errorf("status.ports is %+v, want %+v", waiting.Status.Ports, want)
	}
}
