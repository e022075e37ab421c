// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

var drivers = []string{"docker", "fake"}

func setAction(action api.Action) func(*api.VirtualMachine) {
	return func(vm *api.VirtualMachine) { vm.Spec.Action = action }
}

// TestReadyReflectsTheLatestSpec checks that kubectl wait right after a change waits for
// the change, and that no earlier version of the object is reported as Ready for it.
func TestReadyReflectsTheLatestSpec(t *testing.T) {
	t.Parallel()
	vm := environment.CreateActiveVM(t, newSmallVM("vm", environment.CreateNamespace(t), "docker").Image(framework.GuestStubborn).GracePeriod(2))
	testenv.RequestFromGuest(t, vm, "/")
	history := environment.RecordHistory(t, vm)
	environment.MustRunKubectl(t, "", "patch", "vm", "vm", "-n", vm.Namespace, "--type=merge", "-p", `{"spec":{"action":"stopped"}}`)
	environment.MustRunKubectl(t, "", "wait", "vm/vm", "-n", vm.Namespace, "--for=condition=Ready", "--timeout=60s")
	now := environment.GetVM(t, vm)
	assert.True(t, now.Status.Phase == api.PhaseStopped, "kubectl wait returned at %s", framework.FormatStatus(now))
	for _, version := range history.WaitForVersion(t, now) {
		ready := meta.FindStatusCondition(version.Status.Conditions, api.ConditionReady)
		reported := ready.Status == metav1.ConditionTrue && ready.ObservedGeneration == version.Generation
		if reported && !isAsSpecified(version) {
			t.Errorf("version %s of generation %d is reported as Ready: %s", version.ResourceVersion, version.Generation, framework.FormatStatus(version))
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
