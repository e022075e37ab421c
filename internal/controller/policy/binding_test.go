// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/policy/policytest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/framework"
)

// TestEngineMismatchByStatus checks that the status names the server's engine, even
// if the annotation agrees with the engine that answers.
func TestEngineMismatchByStatus(t *testing.T) {
	vm := policytest.ReportedVM().Status(func(s *api.VirtualMachineStatus) {
		s.Binding = &api.Binding{Driver: "fake", EngineID: "engine-2"}
	}).Obj()
	if d := Decide(inputOf(vm, policytest.Gone())); d.Status.Reason != api.ReasonEngineMismatch || d.Action.Step != StepNone {
		t.Errorf("got %s", summaryOf(d))
	}
	if IsBound(vm) {
		t.Error("the annotation counts although the status says another engine")
	}
	if got := DriverOf(vm, []string{"qemu", "fake"}); got != "fake" {
		t.Errorf("the VM belongs to %q", got)
	}
}

// TestDriverOf covers how the driver of a VM is chosen.
func TestDriverOf(t *testing.T) {
	status := func(s *api.VirtualMachineStatus) { s.Driver = "fake" }
	tests := map[string]struct {
		vm   *framework.VMBuilder
		want string
	}{
		"new, no driver named":              {framework.NewVM("vm"), "docker"},
		"new, a driver named":               {framework.NewVM("vm").Driver("fake"), "fake"},
		"a driver that does not run":        {framework.NewVM("vm").Driver("xen"), ""},
		"bound":                             {framework.NewVM("vm").Bound("fake/x"), "fake"},
		"bound to one that does not run":    {framework.NewVM("vm").Bound("qemu/x"), ""},
		"older status, had a server":        {framework.NewVM("vm").Status(status).Status(policytest.WithServer("id", driver.StateRunning)), "fake"},
		"older status, never had a server":  {framework.NewVM("vm").Status(status), "docker"},
		"an annotation that says nothing":   {framework.NewVM("vm").Bound("nonsense"), "docker"},
		"the status against the annotation": {framework.NewVM("vm").Bound("docker/x").Status(func(s *api.VirtualMachineStatus) { s.Binding = &api.Binding{Driver: "fake", EngineID: "y"} }), "fake"},
	}
	for name, tc := range tests {
		if got := DriverOf(tc.vm.Obj(), []string{"docker", "fake"}); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}
