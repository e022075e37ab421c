// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// finish lets the object go, but only if the engine itself has just said that
// the server is gone; otherwise the pass goes on with what it said.
func (r *Reconciler) finish(ctx context.Context, p *pass) (done bool, err error) {
	if !controllerutil.ContainsFinalizer(p.base, v1alpha1.FinalizerServer) {
		return true, nil
	}
	if !p.fresh {
		if err := p.look(ctx); err != nil {
			p.fail(p.plan, err)
			return false, nil
		}
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
