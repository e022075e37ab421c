// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// boundVM is a VirtualMachine with a binding.
func boundVM() *framework.VMBuilder {
	return framework.NewVM("vm").UID("uid-1").Bound("fake/engine-1/uid-1")
}

// withServer puts a server into the status.
func withServer(s *api.VirtualMachineStatus) { s.Server = &api.ServerStatus{ID: "id"} }

// TestEngineOfTheStatus checks that the status names the server's engine, even if the annotation
// agrees with the engine that answers.
func TestEngineOfTheStatus(t *testing.T) {
	other := api.Binding{Driver: "fake", EngineID: "engine-2", UID: "uid-1"}
	vm := boundVM().Status(func(s *api.VirtualMachineStatus) { s.Binding = &other }).Obj()
	got := policy.BindingOf(vm)
	assert.True(t, got == other && policy.IsOtherEngine(got, "engine-1"), "the engine is %+v", got)
	assert.True(t, !policy.IsBound(vm), "the annotation counts although the status says another engine")
	assert.Equal(t, "the VM belongs to", policy.DriverOf(vm, []string{"qemu", "fake"}), "fake")
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
		"bound":                             {framework.NewVM("vm").UID("u").Bound("fake/x/u"), "fake"},
		"bound to one that does not run":    {framework.NewVM("vm").UID("u").Bound("qemu/x/u"), ""},
		"bound, without a UID":              {framework.NewVM("vm").Bound("fake/x"), "fake"},
		"all lost, had a server":            {framework.NewVM("vm").Status(status).Status(withServer), "fake"},
		"all lost, never had a server":      {framework.NewVM("vm").Status(status), "docker"},
		"an annotation that says nothing":   {framework.NewVM("vm").Bound("nonsense"), "docker"},
		"the status against the annotation": {framework.NewVM("vm").Bound("docker/x").Status(func(s *api.VirtualMachineStatus) { s.Binding = &api.Binding{Driver: "fake", EngineID: "y"} }), "fake"},
	}
	for name, tc := range tests {
		assert.Equal(t, name, policy.DriverOf(tc.vm.Obj(), []string{"docker", "fake"}), tc.want)
	}
}

// TestBindingOf checks which binding counts: the one with the VirtualMachine's UID, then one without a
// UID, which it does not get, and never one with another object's UID or one that is too long for a
// status.
func TestBindingOf(t *testing.T) {
	longDriver, longEngine := strings.Repeat("d", policy.MaxDriver), strings.Repeat("e", policy.MaxEngineID)
	status := func(s *api.VirtualMachineStatus) { s.Driver = "fake" }
	inStatus := func(engine string, uid types.UID) func(*api.VirtualMachineStatus) {
		return func(s *api.VirtualMachineStatus) {
			s.Binding = &api.Binding{Driver: "fake", EngineID: engine, UID: uid}
		}
	}
	bare := func(engine string) api.Binding { return api.Binding{Driver: "fake", EngineID: engine} }
	own := func(engine string) api.Binding { return api.Binding{Driver: "fake", EngineID: engine, UID: "uid-1"} }
	vm := func() *framework.VMBuilder { return framework.NewVM("vm").UID("uid-1") }
	for name, tc := range map[string]struct {
		vm   *framework.VMBuilder
		want api.Binding
	}{
		"none":                            {vm().Status(status), api.Binding{}},
		"the annotation":                  {vm().Bound("fake/e/uid-1"), own("e")},
		"the annotation, without a UID":   {vm().Bound("fake/e"), bare("e")},
		"that of another object":          {vm().Bound("fake/e/uid-2"), api.Binding{}},
		"all of another object":           {vm().Bound("fake/e/uid-2").Status(status).Status(inStatus("e", "uid-2")).Status(withServer), api.Binding{}},
		"two with its UID":                {vm().Bound("fake/e/uid-1").Status(inStatus("f", "uid-1")), own("f")},
		"one with its UID, one without":   {vm().Bound("fake/e/uid-1").Status(inStatus("f", "")), own("e")},
		"one without a UID, one with its": {vm().Bound("fake/e").Status(inStatus("f", "uid-1")), own("f")},
		"its UID, another's status":       {vm().Bound("fake/e/uid-1").Status(inStatus("f", "uid-2")), own("e")},
		"its UID, another's annotation":   {vm().Bound("fake/e/uid-2").Status(inStatus("f", "uid-1")), own("f")},
		"one without, and another's":      {vm().Bound("fake/e/uid-2").Status(inStatus("f", "")), bare("f")},
		"two without a UID":               {vm().Bound("fake/e").Status(inStatus("f", "")), bare("f")},
		"as long as may be":               {vm().Bound(longDriver + "/" + longEngine + "/uid-1"), api.Binding{Driver: longDriver, EngineID: longEngine, UID: "uid-1"}},
		"a driver that is too long":       {vm().Bound("d" + longDriver + "/e").Status(status), api.Binding{Driver: "fake"}},
		"an engine's id that is":          {vm().Bound("d/e" + longEngine).Status(status), api.Binding{Driver: "fake"}},
		"no driver":                       {vm().Bound("/e").Status(status), api.Binding{Driver: "fake"}},
		"no engine":                       {vm().Bound("d//uid-1").Status(status), api.Binding{Driver: "fake"}},
		"an empty UID":                    {vm().Bound("d/e/").Status(status), api.Binding{Driver: "fake"}},
		"more than a UID":                 {vm().Bound("d/e/uid-1/x").Status(status), api.Binding{Driver: "fake"}},
		"a server, and no finalizer":      {vm().Status(status).Status(withServer), api.Binding{Driver: "fake"}},
	} {
		assert.Equal(t, name, policy.BindingOf(tc.vm.Obj()), tc.want)
	}
}

func TestIsBound(t *testing.T) {
	for name, tc := range map[string]struct {
		vm   *framework.VMBuilder
		want bool
	}{
		"bound":         {boundVM(), true},
		"without a UID": {boundVM().Bound("fake/engine-1"), false},
		"another's":     {boundVM().Bound("fake/engine-1/uid-2"), false},
		"another's, and its UID in the status": {boundVM().Bound("fake/engine-1/uid-2").Status(func(s *api.VirtualMachineStatus) {
			s.Binding = &api.Binding{Driver: "fake", EngineID: "engine-1", UID: "uid-1"}
		}), false},
		"no finalizer":  {boundVM().Meta(func(m *metav1.ObjectMeta) { m.Finalizers = nil }), false},
		"no annotation": {boundVM().Meta(func(m *metav1.ObjectMeta) { m.Annotations = nil }), false},
		"no annotation, and no engine in the status": {boundVM().Meta(func(m *metav1.ObjectMeta) { m.Annotations = nil }).Status(func(s *api.VirtualMachineStatus) { s.Binding = &api.Binding{} }), false},
	} {
		assert.Equal(t, name, policy.IsBound(tc.vm.Obj()), tc.want)
	}
}

// TestDriverWithoutDrivers checks that no driver is chosen where none runs.
func TestDriverWithoutDrivers(t *testing.T) {
	got := policy.DriverOf(framework.NewVM("vm").Obj(), nil)
	assert.True(t, got == "", "got %q", got)
}
