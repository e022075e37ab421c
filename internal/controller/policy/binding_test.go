// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestBindingOf checks that a binding too long for a status is ignored, and what is known
// without an annotation.
func TestBindingOf(t *testing.T) {
	longDriver, longEngine := strings.Repeat("d", maxDriver), strings.Repeat("e", maxEngineID)
	status := func(s *api.VirtualMachineStatus) { s.Driver = "fake" }
	for name, tc := range map[string]struct {
		vm   *framework.VMBuilder
		want api.Binding
	}{
		"none":                          {framework.NewVM("vm").Status(status), api.Binding{}},
		"as long as may be":             {framework.NewVM("vm").Bound(longDriver + "/" + longEngine), api.Binding{Driver: longDriver, EngineID: longEngine}},
		"a driver that is too long":     {framework.NewVM("vm").Bound("d" + longDriver + "/e").Status(status), api.Binding{Driver: "fake"}},
		"an engine's id that is":        {framework.NewVM("vm").Bound("d/e" + longEngine).Status(status), api.Binding{Driver: "fake"}},
		"no driver":                     {framework.NewVM("vm").Bound("/e").Status(status), api.Binding{Driver: "fake"}},
		"no engine":                     {framework.NewVM("vm").Bound("d/").Status(status), api.Binding{Driver: "fake"}},
		"a server, and no finalizer":    {framework.NewVM("vm").Status(status).Status(policytest.WithServer("id", driver.StateRunning)), api.Binding{Driver: "fake"}},
		"the status, not an annotation": {framework.NewVM("vm").Bound("d/e").Status(func(s *api.VirtualMachineStatus) { s.Binding = &api.Binding{Driver: "fake"} }), api.Binding{Driver: "fake"}},
	} {
		if got := BindingOf(tc.vm.Obj()); got != tc.want {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}

func TestAnnotationOf(t *testing.T) {
	for want, b := range map[string]api.Binding{"": {}, "fake": {Driver: "fake"}, "fake/x": {Driver: "fake", EngineID: "x"}} {
		if got := AnnotationOf(b); got != want {
			t.Errorf("%+v: %q, want %q", b, got, want)
		}
	}
}

func TestIsBound(t *testing.T) {
	for name, tc := range map[string]struct {
		vm   *framework.VMBuilder
		want bool
	}{
		"bound":         {policytest.ReportedVM(), true},
		"no finalizer":  {policytest.ReportedVM().Meta(func(m *metav1.ObjectMeta) { m.Finalizers = nil }), false},
		"no annotation": {policytest.ReportedVM().Meta(func(m *metav1.ObjectMeta) { m.Annotations = nil }), false},
		"no annotation, and no engine in the status": {policytest.ReportedVM().Meta(func(m *metav1.ObjectMeta) { m.Annotations = nil }).Status(func(s *api.VirtualMachineStatus) { s.Binding = &api.Binding{} }), false},
	} {
		if got := IsBound(tc.vm.Obj()); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestDriverWithoutDrivers checks that no driver is chosen where none runs.
func TestDriverWithoutDrivers(t *testing.T) {
	if got := DriverOf(framework.NewVM("vm").Obj(), nil); got != "" {
		t.Errorf("got %q", got)
	}
}
