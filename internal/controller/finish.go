// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// removeFinalizer lets the object go. Its resourceVersion is a precondition.
func (p *reconciliation) removeFinalizer(ctx context.Context) error {
	next := p.base.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerServer)
	if _, err := p.r.patchMetadata(ctx, p.base, next); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	p.base, p.unreported = next, false
	return nil
}

// queryAllDrivers asks every driver live for the server of a VirtualMachine whose
// binding is lost. It returns why the server may still exist, or "" if it does not.
func (r *Reconciler) queryAllDrivers(ctx context.Context, vm *v1alpha1.VirtualMachine) string {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	for _, inv := range r.All {
		seen, err := inv.Look(ctx, vm.UID)
		switch {
		case err != nil:
			return unprovenText(fmt.Sprintf("driver %s cannot say whether it has a server: %v", inv.Name, err))
		case seen.Answer == inventory.Present:
			return unprovenText(fmt.Sprintf("driver %s has the server %s", inv.Name, seen.Server.ID))
		case seen.Answer != inventory.Gone || r.Clock.Now().Before(seen.SettlesAt):
			return unprovenText(fmt.Sprintf("driver %s cannot say yet whether it has a server", inv.Name))
		}
	}
	return ""
}

func unprovenText(cause string) string {
	return fmt.Sprintf("the annotation %s is lost, and %s: set the annotation to <driver>/<engine id> of the server's engine, or remove the finalizer %s by hand if there is no server",
		v1alpha1.AnnotationBound, cause, v1alpha1.FinalizerServer)
}
