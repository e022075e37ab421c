// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/testenv"
)

// TestCrashBeforeCreation kills a controller after it has written finalizer and
// binding, and starts the next one with another default driver.
func TestCrashBeforeCreation(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	w.SetFaults(t, `vm: {hang: true}`)
	first := w.StartControllerProcess(t, nil, "--vm-driver=fake,docker")
	vm := w.CreateVM(t, newSmallVM("vm", ""))
	w.WaitForVM(t, vm, isBoundTo("fake/"), framework.HasPhase(api.PhaseCreating, api.ReasonCreating))
	first.MustKill()
	w.CheckServers(t, vm, 0)

	w.SetFaults(t, "")
	w.RunController(t, "--vm-driver=docker,fake")
	vm = w.WaitForVM(t, vm, framework.IsActive, isBoundTo("fake/"))
	assert.True(t, vm.Status.Driver == "fake" && w.ReadFakeServer(t, vm.UID) != nil, "the server was created on another engine: %s", framework.FormatStatus(vm))
	w.CheckServers(t, vm, 1)
}

func isBoundTo(prefix string) framework.VMCheck {
	return func(vm *api.VirtualMachine) error {
		binding := vm.Annotations[api.AnnotationBound]
		return assert.ErrorUnless(strings.HasPrefix(binding, prefix) && len(vm.Finalizers) != 0, "bound to %q, finalizers %v: want %q", binding, vm.Finalizers, prefix)
	}
}

// TestRestartIsNotRepeated checks that later controllers do not repeat a restart,
// no matter when the first controller was killed.
func TestRestartIsNotRepeated(t *testing.T) {
	t.Parallel()
	w := testenv.StartVirtual(t)
	var vms []*api.VirtualMachine
	controller := w.StartControllerProcess(t, nil)
	for _, name := range drivers {
		vms = append(vms, w.CreateActiveVM(t, newSmallVM("vm-"+name, name).Image(framework.GuestPlain)))
	}
	for _, vm := range vms {
		w.UpdateVM(t, vm, func(vm *api.VirtualMachine) { vm.Spec.RestartedAt = new(metav1.Now()) })
	}
	controller.MustKill()
	for n := range 2 {
		controller = w.StartControllerProcess(t, nil)
		for _, vm := range vms {
			now := w.WaitForVM(t, vm, framework.IsActive, func(vm *api.VirtualMachine) error {
				return assert.ErrorUnless(vm.Spec.RestartedAt.Equal(vm.Status.RestartedAt), "status.restartedAt is %v", vm.Status.RestartedAt)
			})
			now = resizeVM(t, w, now, fmt.Sprintf("%dm", 110+n))
			assert.True(t, now.Status.RestartCount == 1 && now.Status.Server.ID == vm.Status.Server.ID, "%s: %s", vm.Name, framework.FormatStatus(now))
		}
		controller.MustStop()
	}
}
