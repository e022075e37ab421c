// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// The bounds that the CRD sets for a binding. A longer binding is ignored, since no
// status could record it.
const (
	maxDriver   = 63
	maxEngineID = 128
)

// ensureFinalizer puts the finalizer and the binding on a VirtualMachine before
// anything exists for it outside of the API. It restores them if a user's manifest
// has dropped them. It returns the object as written. While the engine's identity
// is unknown it leaves an unbound object unchanged, and nothing is created either.
func (r *Reconciler) ensureFinalizer(ctx context.Context, vm *api.VirtualMachine) (*api.VirtualMachine, error) {
	if vm.DeletionTimestamp != nil || r.Inventory == nil || IsBound(vm) {
		return vm, nil
	}
	bound := BindingOf(vm)
	if bound.EngineID == "" {
		bound = api.Binding{Driver: r.Driver, EngineID: r.Inventory.Get(vm.UID).EngineID}
	}
	if bound.EngineID == "" {
		return vm, nil
	}
	next := vm.DeepCopy()
	controllerutil.AddFinalizer(next, api.FinalizerServer)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, api.AnnotationBound, AnnotationOf(bound))
	return r.patchMetadata(ctx, vm, next)
}

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
	if vm.Status.Server != nil || controllerutil.ContainsFinalizer(vm, api.FinalizerServer) {
		return api.Binding{Driver: vm.Status.Driver}
	}
	return api.Binding{}
}

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
	return controllerutil.ContainsFinalizer(vm, api.FinalizerServer) &&
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

// patchMetadata writes an object's finalizers and binding, the only metadata that Drover
// changes. It fails with a conflict if the object was changed meanwhile.
func (r *Reconciler) patchMetadata(ctx context.Context, from, to *api.VirtualMachine) (*api.VirtualMachine, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	change := map[string]any{"resourceVersion": from.ResourceVersion, "finalizers": to.Finalizers}
	if bound := to.Annotations[api.AnnotationBound]; bound != from.Annotations[api.AnnotationBound] {
		change["annotations"] = map[string]string{api.AnnotationBound: bound}
	}
	content, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return from, err
	}
	if err := r.Client.Patch(ctx, to, client.RawPatch(types.MergePatchType, content)); err != nil {
		return from, err
	}
	r.writes.recordWrite(to)
	return to, nil
}

// keyOf returns the namespace and name of a VirtualMachine.
func keyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }

// isFinalized reports whether the VirtualMachine is being deleted and no longer has
// Drover's finalizer.
func isFinalized(vm *api.VirtualMachine) bool {
	return vm.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(vm, api.FinalizerServer)
}
