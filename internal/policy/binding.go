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

// BindingOf returns where the server of a VirtualMachine is, according to the
// object. The status takes precedence over the annotation, since a user's manifest
// cannot change it. A binding of another UID came with a copied object and is
// ignored. One without a UID proves nothing and is not ignored either: LacksUID. If
// all is lost but that the VirtualMachine had a server, the engine's id is empty.
// Both are empty if nothing is known.
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

// IsStatusCopied reports whether the status was written about another object, of
// which this one is a copy.
func IsStatusCopied(vm *api.VirtualMachine) bool {
	b := vm.Status.Binding
	return b != nil && b.UID != "" && b.UID != vm.UID
}

// LacksUID reports whether all that is known of the engine is a binding without a UID.
// It may be that of the VirtualMachine, or have come with a copy of another.
func LacksUID(bound api.Binding) bool { return bound.EngineID != "" && bound.UID == "" }

// parseAnnotation returns the binding that an annotation has, or nil if it has none.
func parseAnnotation(value string) *api.Binding {
	name, rest, _ := strings.Cut(value, "/")
	engine, uid, hasUID := strings.Cut(rest, "/")
	if name == "" || engine == "" || len(name) > maxDriver || len(engine) > maxEngineID || hasUID && uid == "" {
		return nil
	}
	return &api.Binding{Driver: name, EngineID: engine, UID: types.UID(uid)}
}

// hasFinalizer reports whether a VirtualMachine has Drover's finalizer. controllerutil would
// slow the start of kubectl-vm, which prints decisions.
func hasFinalizer(vm *api.VirtualMachine) bool {
	return slices.Contains(vm.Finalizers, api.FinalizerServer)
}

// AnnotationOf returns the value of the annotation for a binding.
func AnnotationOf(b api.Binding) string {
	return engineText(b) + "/" + string(b.UID)
}

// engineText names the engine of a binding in messages.
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
