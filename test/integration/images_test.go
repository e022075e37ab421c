// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/framework"
)

// Images that cannot be fetched: one is at an address without a listener, the other is
// never pulled.
const (
	unreachable = "127.0.0.1:1/missing:latest"
	absent      = "drover-test-absent:latest"
)

func newFailingVM(name, ns, image string, policy api.PullPolicy) *framework.VMBuilder {
	b := newSmallVM(name, ns, "docker").Image(image)
	return b.Spec(func(s *api.VirtualMachineSpec) { s.Image.PullPolicy = policy })
}

// TestMissingImage checks that the engine's reason is reported, and that every status write
// reports something new. Tests beside the controller and its policy check, with a clock that
// runs faster, that tries become rarer.
func TestMissingImage(t *testing.T) {
	t.Parallel()
	ns := environment.CreateNamespace(t)
	for name, tc := range map[string]struct {
		image  string
		policy api.PullPolicy
		want   string
	}{
		"pulled":       {unreachable, api.PullIfNotPresent, "connection refused"},
		"never-pulled": {absent, api.PullNever, "pullPolicy is Never"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			vm := environment.CreateVM(t, newFailingVM(name, ns, tc.image, tc.policy))
			history := environment.RecordHistory(t, vm)
			environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonImageUnavailable), framework.HasMessage(tc.want),
				framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
			vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonImageUnavailable), hasAttempts(3))
			checkEachWriteChangesSomething(t, history.WaitForVersion(t, vm))

			environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Image.Source = framework.GuestPlain })
			environment.WaitForVM(t, vm, framework.IsActive)
		})
	}
}

// hasAttempts waits for the n-th failure in a row.
func hasAttempts(n int32) framework.VMCheck {
	return func(vm *api.VirtualMachine) error {
		if op := vm.Status.Operation; op == nil || op.Attempts < n {
			return fmt.Errorf("operation %+v: want %d attempts", op, n)
		}
		return nil
	}
}

// checkEachWriteChangesSomething : no two versions in a row differ in their time alone.
func checkEachWriteChangesSomething(t *testing.T, all []*api.VirtualMachine) {
	t.Helper()
	for n := 1; n < len(all); n++ {
		before, after := all[n-1].DeepCopy(), all[n].DeepCopy()
		for _, vm := range []*api.VirtualMachine{before, after} {
			vm.Status.LastUpdateTime, vm.ResourceVersion, vm.ManagedFields = nil, "", nil
		}
		if equality.Semantic.DeepEqual(before, after) {
			t.Errorf("version %s says nothing new: %s", all[n].ResourceVersion, framework.FormatStatus(all[n]))
		}
	}
}

// TestTooManyCPUs checks that the message has the needed CPUs.
func TestTooManyCPUs(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, framework.NewVM("vm").Namespace(environment.CreateNamespace(t)).Resource(api.ResourceCPU, "4000"))
	environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonExhausted), framework.HasMessage("4000"))
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceCPU] = resource.MustParse("1") })
	environment.WaitForVM(t, vm, framework.IsActive)
}
