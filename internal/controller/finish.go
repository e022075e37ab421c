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

// finish removes the finalizer, but only if the engine itself has just confirmed
// that the server is gone. Otherwise the reconcile pass continues with the engine's
// answer.
func (r *Reconciler) finish(ctx context.Context, p *reconciliation) (done bool, err error) {
	if !controllerutil.ContainsFinalizer(p.base, v1alpha1.FinalizerServer) {
		return true, nil
	}
	if !p.fresh {
		if err := p.refreshObservation(ctx); err != nil {
			p.recordFailure(p.decision, err)
			return false, nil
		}
	}
	if p.seen.Answer != inventory.Gone {
		return false, nil
	}
	if p.decision.Action.AllDrivers {
		if p.elsewhere = r.askEverywhere(ctx, p.vm); p.elsewhere != "" {
			return false, nil
		}
	}
	next := p.base.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerServer)
	if _, err := r.patch(ctx, p.base, next); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	return true, nil
}

// askEverywhere asks every driver live for the server of a VirtualMachine whose
// binding is lost. It returns why the server may still exist, or "" if it does not.
func (r *Reconciler) askEverywhere(ctx context.Context, vm *v1alpha1.VirtualMachine) string {
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
