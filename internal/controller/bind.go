// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// ensureFinalizer puts the finalizer and the binding on a VirtualMachine before
// anything exists for it outside of the API. It returns the object as written.
// While the engine's identity is not known it leaves the object as it is: then
// nothing is created either.
func (r *Reconciler) ensureFinalizer(ctx context.Context, vm *api.VirtualMachine) (*api.VirtualMachine, error) {
	if vm.DeletionTimestamp != nil || r.Inventory == nil || isBound(vm) {
		return vm, nil
	}
	next := vm.DeepCopy()
	controllerutil.AddFinalizer(next, api.FinalizerServer)
	if next.Annotations[api.AnnotationBound] == "" {
		id := r.Inventory.Get(vm.UID).EngineID
		if id == "" {
			return vm, nil
		}
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[api.AnnotationBound] = r.Driver + "/" + id
	}
	return r.patch(ctx, vm, next)
}

// isBound tells whether a server may exist for the VirtualMachine.
func isBound(vm *api.VirtualMachine) bool {
	return controllerutil.ContainsFinalizer(vm, api.FinalizerServer) && vm.Annotations[api.AnnotationBound] != ""
}

// patch writes the finalizers and the binding of an object, which is all of the
// metadata that Drover changes; it fails with a conflict if somebody has written
// the object meanwhile.
func (r *Reconciler) patch(ctx context.Context, from, to *api.VirtualMachine) (*api.VirtualMachine, error) {
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
	r.recent.remember(to)
	return to, nil
}

// keyOf names a VirtualMachine.
func keyOf(vm *api.VirtualMachine) types.NamespacedName { return client.ObjectKeyFromObject(vm) }

// letGo tells whether the VirtualMachine is being deleted and Drover has no
// more say in it.
func letGo(vm *api.VirtualMachine) bool {
	return vm.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(vm, api.FinalizerServer)
}
