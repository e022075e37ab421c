// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// finish lets the object go, but only if the engine itself has just said that
// the server is gone; otherwise the pass goes on with what it said.
func (r *Reconciler) finish(ctx context.Context, p *pass) (done bool, err error) {
	if !controllerutil.ContainsFinalizer(p.base, v1alpha1.FinalizerServer) {
		return true, nil
	}
	if err := r.askForRest(ctx, p); driver.MayNotAct(err) {
		return false, err
	} else if err != nil {
		p.fail(p.plan, err)
		return false, nil
	}
	if p.seen.Answer != inventory.Gone {
		return false, nil
	}
	next := p.base.DeepCopy()
	controllerutil.RemoveFinalizer(next, v1alpha1.FinalizerServer)
	if _, err := r.patch(ctx, p.base, next); err != nil && !apierrors.IsNotFound(err) {
		return false, err
	}
	return true, nil
}

// askForRest looks at what the engine itself says of the UID, after a removal
// under this leader's epoch, even if there seems to be nothing to remove: an
// engine that compares epochs then takes no late call of a predecessor, which
// could make the server anew for an object that is gone.
func (r *Reconciler) askForRest(ctx context.Context, p *pass) error {
	removed := p.did == v1alpha1.OperationDelete || p.did == v1alpha1.OperationRelease
	if removed && p.fresh {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	retain := p.vm.Spec.DeletionPolicy == v1alpha1.DeletionRetain
	if err := r.Inventory.Delete(ctx, p.target(), retain); err != nil && !errors.Is(err, driver.ErrNotFound) {
		return err
	}
	return p.look(ctx)
}
