// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// The bounds that the CRD sets for a binding. A longer binding is ignored, since no
// status could record it.
const (
	maxDriver   = 63
	maxEngineID = 128
)

// BindingOf returns where the server of a VirtualMachine is, according to the
// object. The status takes precedence, since a user's manifest cannot change it. A
// status of an older version has only the driver, and then the engine's id is
// empty. Both are empty if nothing is known.
func BindingOf(vm *api.VirtualMachine) api.Binding {
	if vm.Status.Binding != nil {
		return *vm.Status.Binding
	}
	name, engine, _ := strings.Cut(vm.Annotations[api.AnnotationBound], "/")
	if name != "" && engine != "" && len(name) <= maxDriver && len(engine) <= maxEngineID {
		return api.Binding{Driver: name, EngineID: engine}
	}
	if vm.Status.Server != nil || hasFinalizer(vm) {
		return api.Binding{Driver: vm.Status.Driver}
	}
	return api.Binding{}
}

// hasFinalizer reports whether a VirtualMachine has Drover's finalizer. controllerutil would
// slow the start of kubectl-vm, which replays decisions.
func hasFinalizer(vm *api.VirtualMachine) bool {
	return slices.Contains(vm.Finalizers, api.FinalizerServer)
}

// AnnotationOf returns the value of the annotation for a binding.
func AnnotationOf(b api.Binding) string {
	if b.EngineID == "" {
		return b.Driver
	}
	return b.Driver + "/" + b.EngineID
}

// IsBound reports whether a server may exist for the VirtualMachine: it has the
// finalizer, and the annotation agrees with the status.
func IsBound(vm *api.VirtualMachine) bool {
	bound := BindingOf(vm)
	return hasFinalizer(vm) &&
		bound.EngineID != "" && vm.Annotations[api.AnnotationBound] == AnnotationOf(bound)
}

// DriverOf returns the driver that a VirtualMachine belongs to: the one that it is
// bound to, else the one that it requests, else the default. It is empty if that
// driver does not run here.
func DriverOf(vm *api.VirtualMachine, drivers []string) string {
	name := BindingOf(vm).Driver
	if name == "" {
		name = vm.Spec.Driver
	}
	switch {
	case name == "" && len(drivers) > 0:
		return drivers[0]
	case slices.Contains(drivers, name):
		return name
	}
	return ""
}
