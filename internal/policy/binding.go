// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// The bounds that the CRD sets for a binding. A longer binding is ignored, since no
// status could record it.
const (
	maxDriver   = 63
	maxEngineID = 128
)

// BindingOf returns the driver and the engine that the object names for its server. The status takes
// precedence over the annotation, since a user's manifest cannot change the status. A binding with
// another UID came with a copied object and is ignored. A binding without a UID proves nothing, but is
// not ignored either: see LacksUID. If the object only shows that it had a server, the engine's ID is
// empty. If it shows nothing, the driver is empty too.
func BindingOf(vm *api.VirtualMachine) api.Binding {
	status, annotation := vm.Status.Binding, parseAnnotation(vm.Annotations[api.AnnotationBound])
	for _, b := range []*api.Binding{status, annotation} {
		if b != nil && b.UID != "" && b.UID == vm.UID {
			return *b
		}
	}
	for _, b := range []*api.Binding{status, annotation} {
		if b != nil && b.UID == "" {
			return *b
		}
	}
	if !IsStatusCopied(vm) && (vm.Status.Server != nil || hasFinalizer(vm)) {
		return api.Binding{Driver: vm.Status.Driver}
	}
	return api.Binding{}
}

// IsStatusCopied reports whether the status belongs to another object, from which this object was
// copied.
func IsStatusCopied(vm *api.VirtualMachine) bool {
	b := vm.Status.Binding
	return b != nil && b.UID != "" && b.UID != vm.UID
}

// LacksUID reports whether the binding names an engine but not a UID. Such a binding may belong to
// the VirtualMachine, or may have been copied from another object.
func LacksUID(bound api.Binding) bool { return bound.EngineID != "" && bound.UID == "" }

// parseAnnotation returns the binding in the value of an annotation, or nil if the value is not valid.
func parseAnnotation(value string) *api.Binding {
	name, rest, _ := strings.Cut(value, "/")
	engine, uid, hasUID := strings.Cut(rest, "/")
	if name == "" || engine == "" || len(name) > maxDriver || len(engine) > maxEngineID || hasUID && uid == "" {
		return nil
	}
	return &api.Binding{Driver: name, EngineID: engine, UID: types.UID(uid)}
}

// hasFinalizer reports whether a VirtualMachine has Drover's finalizer. It does without controllerutil,
// whose import would slow the start of kubectl-vm.
func hasFinalizer(vm *api.VirtualMachine) bool {
	return slices.Contains(vm.Finalizers, api.FinalizerServer)
}

// AnnotationOf returns the value of the annotation for a binding.
func AnnotationOf(b api.Binding) string {
	return engineText(b) + "/" + string(b.UID)
}

// engineText returns the driver and the engine of a binding, for messages.
func engineText(b api.Binding) string {
	if b.EngineID == "" {
		return b.Driver
	}
	return b.Driver + "/" + b.EngineID
}

// IsBound reports whether a server may exist for the VirtualMachine: it has the
// finalizer, and the annotation agrees with the status.
func IsBound(vm *api.VirtualMachine) bool {
	bound := BindingOf(vm)
	return hasFinalizer(vm) && bound.UID != "" && vm.Annotations[api.AnnotationBound] == AnnotationOf(bound)
}

// DriverOf returns the driver of a VirtualMachine: the driver of its binding, else the driver
// that its spec names, else the first of drivers, which is the default. It returns "" if
// drivers does not contain the driver.
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
