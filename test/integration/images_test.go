// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
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

// TestMissingImage checks that the engine's reason is reported, that tries become
// rarer, and that every status write reports something new. Another test beside the
// controller counts eight tries in three minutes, with a clock that runs faster.
func TestMissingImage(t *testing.T) {
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
			vm := environment.CreateVM(t, newFailingVM(name, ns, tc.image, tc.policy))
			history := environment.RecordHistory(t, vm)
			environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonImageUnavailable), framework.HasMessage(tc.want),
				framework.HasCondition(api.ConditionReady, metav1.ConditionFalse))
			vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonImageUnavailable), hasAttempts(3))
			checkBackoff(t, history.WaitForVersion(t, vm))
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

func checkBackoff(t *testing.T, all []*api.VirtualMachine) {
	t.Helper()
	waits := map[int32]time.Duration{}
	for _, vm := range all {
		if op := vm.Status.Operation; op != nil && op.NextRetryTime != nil && waits[op.Attempts] == 0 {
			waits[op.Attempts] = op.NextRetryTime.Sub(vm.Status.LastUpdateTime.Time)
		}
	}
	for n, want := range map[int32]time.Duration{1: time.Second, 2: 2 * time.Second, 3: 4 * time.Second} {
		// The write comes a little after the failure.
		if waits[n] > want || waits[n] < want-900*time.Millisecond {
			t.Errorf("after failure %d it waits %s, want %s", n, waits[n], want)
		}
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

func TestDeletionOfFailedVM(t *testing.T) {
	ns := environment.CreateNamespace(t)
	for name, tc := range map[string]struct {
		image  string
		policy api.PullPolicy
	}{"pulled": {unreachable, api.PullAlways}, "never-pulled": {absent, api.PullNever}} {
		t.Run(name, func(t *testing.T) {
			vm := environment.CreateVM(t, newFailingVM(name, ns, tc.image, tc.policy))
			vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonImageUnavailable))
			environment.DeleteVM(t, vm)
			environment.WaitForDeletion(t, vm)
			environment.CheckServers(t, vm, 0)
		})
	}
}

// TestTooManyCPUs checks that the message has the needed and the
// available CPUs.
func TestTooManyCPUs(t *testing.T) {
	t.Parallel()
	vm := environment.CreateVM(t, framework.NewVM("vm").Namespace(environment.CreateNamespace(t)).Resource(api.ResourceCPU, "4000"))
	vm = environment.WaitForVM(t, vm, framework.HasPhase(api.PhaseFailed, api.ReasonExhausted), framework.HasMessage("4000"))
	if wait := vm.Status.Operation.NextRetryTime.Sub(vm.Status.LastUpdateTime.Time); wait < 25*time.Second {
		t.Errorf("it is tried again after %s, want it slowly", wait)
	}
	environment.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.Resource[api.ResourceCPU] = parseQuantity("1") })
	environment.WaitForVM(t, vm, framework.IsActive)
}
