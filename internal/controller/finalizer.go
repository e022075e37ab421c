// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/policy"
)

// ensureFinalizer puts the finalizer and the binding on a VirtualMachine before anything exists for the
// VirtualMachine outside of the API, and returns the object as written. It restores both if a user's
// manifest has dropped them, and gives a copy of another object a new binding.
//
// It does not change an unbound object while the ID of the engine is unknown, nor an object
// whose binding lacks a UID. Nothing is created for such an object either.
func (r *Reconciler) ensureFinalizer(ctx context.Context, vm *api.VirtualMachine) (*api.VirtualMachine, error) {
	if vm.DeletionTimestamp != nil || r.Inventory == nil {
		return vm, nil
	}
	if policy.IsBound(vm) || policy.LacksUID(policy.BindingOf(vm)) {
		return vm, nil
	}
	bound := policy.BindingOf(vm)
	if bound.EngineID == "" {
		bound = api.Binding{Driver: r.Driver, EngineID: r.Inventory.Get(vm.UID).EngineID, UID: vm.UID}
	}
	if bound.EngineID == "" {
		return vm, nil
	}
	next := vm.DeepCopy()
	controllerutil.AddFinalizer(next, api.FinalizerServer)
	metav1.SetMetaDataAnnotation(&next.ObjectMeta, api.AnnotationBound, policy.AnnotationOf(bound))
	return r.Client.PatchMetadata(ctx, vm, next)
}

// removeFinalizer removes the finalizer, with the resourceVersion as precondition.
// confirmGone has proven that there is no server.
func (s *step) removeFinalizer(ctx context.Context) error {
	next := s.base.DeepCopy()
	controllerutil.RemoveFinalizer(next, api.FinalizerServer)
	if _, err := s.r.Client.PatchMetadata(ctx, s.base, next); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	s.base, s.unreported = next, false
	return nil
}
