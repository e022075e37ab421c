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

// ensureBudget creates or updates the PodDisruptionBudget that the spec asks for, or removes it.
func (c *convergence) ensureBudget(ctx context.Context) error {
	r := c.recordedObject(objects.KindBudget, c.Key.Name)
	if r == nil && !c.spec.BlockEviction || c.budget != nil || c.hasNoBudget {
		return nil // nothing to do, or this call has done it
	}
	budgets := c.driver.Policy.PodDisruptionBudgets(c.Key.Namespace)
	have, err := budgets.Get(ctx, c.Key.Name, metav1.GetOptions{})
	if objects.IgnoreNotFound(err) != nil {
		return objects.Explain("read", objects.KindBudget, c.Key, err)
	}
	exists := err == nil
	switch {
	case !c.spec.BlockEviction:
		if exists && c.checkRecorded(objects.KindBudget, have) == nil {
			err = budgets.Delete(ctx, have.Name, objects.OnlyAs(have))
		}
		err = objects.IgnoreNotFound(err)
		c.hasNoBudget = err == nil
		return objects.Explain("delete", objects.KindBudget, c.Key, err)
	case !exists && (r == nil || r.UID != ""):
		return c.recordFirst(nil, objects.NewIntent(objects.KindBudget, c.Key.Name))
	case !exists:
		have, err = budgets.Create(ctx, c.driver.Objects.NewBudget(c.spec, r.Nonce), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return objects.TakenError(objects.KindBudget, c.Key) // the next call reads it
		}
		c.budget = have
		return objects.Explain("create", objects.KindBudget, c.Key, err)
	}
	if err := c.checkRecorded(objects.KindBudget, have); err != nil {
		return err
	}
	return c.updateBudget(ctx, have)
}

// updateBudget reverts what others have changed of the PodDisruptionBudget.
func (c *convergence) updateBudget(ctx context.Context, have *policyv1.PodDisruptionBudget) error {
	c.budget = have
	wanted := c.driver.Objects.NewBudget(c.spec, "")
	if equality.Semantic.DeepEqual(have.Spec, wanted.Spec) && equality.Semantic.DeepEqual(have.OwnerReferences, wanted.OwnerReferences) {
		return nil
	}
	next := have.DeepCopy()
	next.Spec, next.OwnerReferences = wanted.Spec, wanted.OwnerReferences
	if err := objects.EnterEpoch(next, c.spec.Epoch); err != nil {
		return err
	}
	_, err := c.driver.Policy.PodDisruptionBudgets(c.Key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return objects.Explain("change", objects.KindBudget, c.Key, err)
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
		err = budgets.Delete(ctx, have.Name, objects.OnlyAs(have))
	}
	return objects.Explain("delete", objects.KindBudget, server.Key, objects.IgnoreNotFound(err))
}
