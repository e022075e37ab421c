// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"encoding/json"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// ensureFinalizer puts the finalizer and the binding on a VirtualMachine before
// anything exists for it outside of the API. It restores them if a user's manifest
// has dropped them, binds a copy of another object afresh, and adds the UID to a
// binding of an earlier version. It returns the object as written. While the engine's
// identity is unknown it leaves an unbound object unchanged, and nothing is created
// either.
func (r *Reconciler) ensureFinalizer(ctx context.Context, vm *api.VirtualMachine) (*api.VirtualMachine, error) {
	if vm.DeletionTimestamp != nil || r.Inventory == nil {
		return vm, nil
	}
	bound := policy.BindingOf(vm)
	if policy.IsBound(vm) && vm.Annotations[api.AnnotationBound] == policy.AnnotationOf(bound) {
		return vm, nil
	}
	if bound.EngineID == "" {
		bound = api.Binding{Driver: r.Driver, EngineID: r.Inventory.Get(vm.UID).EngineID, UID: vm.UID}
	}
	if bound.EngineID == "" {
		return vm, nil
	}
	next := vm.DeepCopy()
	controllerutil.AddFinalizer(next, api.FinalizerServer)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, api.AnnotationBound, policy.AnnotationOf(bound))
	return r.patchMetadata(ctx, vm, next)
}

// removeFinalizer removes the finalizer, with the resourceVersion as precondition.
// confirmGone has proven that there is no server.
func (p *reconciliation) removeFinalizer(ctx context.Context) error {
	next := p.base.DeepCopy()
	controllerutil.RemoveFinalizer(next, api.FinalizerServer)
	if _, err := p.r.patchMetadata(ctx, p.base, next); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	p.base, p.unreported = next, false
	return nil
}

// patchMetadata writes an object's finalizers and binding, the only metadata that
// Drover changes. It fails with a conflict if the object was changed meanwhile.
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
	_ = r.recordWrite(ctx, to) // a changed status has an event of its own
	return to, nil
}

// isFinalized reports whether the VirtualMachine is being deleted and no longer has
// Drover's finalizer.
func isFinalized(vm *api.VirtualMachine) bool {
	return vm.DeletionTimestamp != nil && !controllerutil.ContainsFinalizer(vm, api.FinalizerServer)
}
