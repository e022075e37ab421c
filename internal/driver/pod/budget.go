// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// budget ensures the PodDisruptionBudget of a server, for one call of Ensure.
type budget struct {
	*call
	records records
	have    *policyv1.PodDisruptionBudget // nil if there is none
	isGone  bool                          // its record is to be removed
}

// ensure creates or updates the PodDisruptionBudget that the spec asks for, or removes it.
func (b *budget) ensure(ctx context.Context) error {
	r := b.records.find(objects.KindBudget, b.server.Key.Name)
	if r == nil && !b.spec.BlockEviction || b.have != nil || b.isGone {
		return nil // nothing to do, or this call has done it
	}
	budgets := b.driver.Policy.PodDisruptionBudgets(b.server.Key.Namespace)
	have, err := budgets.Get(ctx, b.server.Key.Name, metav1.GetOptions{})
	if objects.IgnoreNotFound(err) != nil {
		return objects.Explain("read", objects.KindBudget, b.server.Key, err)
	}
	exists := err == nil
	switch {
	case !b.spec.BlockEviction:
		if exists && b.records.check(objects.KindBudget, have) == nil {
			err = budgets.Delete(ctx, have.Name, objects.IfUnchanged(have))
		}
		err = objects.IgnoreNotFound(err)
		b.isGone = err == nil
		return objects.Explain("delete", objects.KindBudget, b.server.Key, err)
	case !exists && (r == nil || r.UID != ""):
		return objects.RecordFirst(b.spec.Objects, nil, objects.NewIntent(objects.KindBudget, b.server.Key.Name))
	case !exists:
		have, err = budgets.Create(ctx, b.driver.Objects.NewBudget(b.spec, r.Nonce), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return objects.TakenError(objects.KindBudget, b.server.Key) // the next call reads it
		}
		b.have = have
		return objects.Explain("create", objects.KindBudget, b.server.Key, err)
	}
	if err := b.records.check(objects.KindBudget, have); err != nil {
		return err
	}
	return b.update(ctx, have)
}

// update reverts what others have changed of the PodDisruptionBudget.
func (b *budget) update(ctx context.Context, have *policyv1.PodDisruptionBudget) error {
	b.have = have
	wanted := b.driver.Objects.NewBudget(b.spec, "")
	if equality.Semantic.DeepEqual(have.Spec, wanted.Spec) && equality.Semantic.DeepEqual(have.OwnerReferences, wanted.OwnerReferences) {
		return nil
	}
	next := have.DeepCopy()
	next.Spec, next.OwnerReferences = wanted.Spec, wanted.OwnerReferences
	if err := objects.EnterEpoch(next, b.spec.Epoch); err != nil {
		return err
	}
	_, err := b.driver.Policy.PodDisruptionBudgets(b.server.Key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return objects.Explain("change", objects.KindBudget, b.server.Key, err)
}

// removeOrphanedBudget removes the PodDisruptionBudget of a server that is deleted or released. The
// cluster does so by itself, unless the VirtualMachine is deleted with orphan propagation. A pod tells
// whether there may be one. An object with the name, the labels and a nonce is Drover's, or was forged by
// a user who may edit the namespace.
func (d *Driver) removeOrphanedBudget(ctx context.Context, server *instance.Instance) error {
	if server.Pod != nil && server.Pod.Annotations[objects.AnnotationEviction] == "" {
		return nil
	}
	budgets := d.Policy.PodDisruptionBudgets(server.Key.Namespace)
	have, err := budgets.Get(ctx, server.Key.Name, metav1.GetOptions{})
	isOurs := err == nil && have.Labels[objects.LabelUID] == string(server.UID) && have.Labels[objects.LabelCluster] == d.Objects.ClusterID && have.Annotations[objects.AnnotationNonce] != ""
	if isOurs {
		err = budgets.Delete(ctx, have.Name, objects.IfUnchanged(have))
	}
	return objects.Explain("delete", objects.KindBudget, server.Key, objects.IgnoreNotFound(err))
}
