// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"cloudnative.tw/drover/internal/driver"
)

// newBudget returns the PodDisruptionBudget that has every eviction of the server refused. A number,
// since a share needs a scale, which the owner of the pod has not.
func (d *Driver) newBudget(spec driver.ServerSpec, nonce string) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: d.newMeta(spec, baseName(spec.Name, spec.UID), nonce),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)),
			Selector:     &metav1.LabelSelector{MatchLabels: map[string]string{LabelUID: string(spec.UID)}},
		},
	}
	b.OwnerReferences = []metav1.OwnerReference{ownerReference(spec)}
	return b
}

// ensureBudget makes the PodDisruptionBudget that the spec asks for, or removes it.
func (c *convergence) ensureBudget(ctx context.Context) error {
	r := c.recorded(kindBudget, c.key.Name)
	if r == nil && !c.spec.BlockEviction {
		return nil
	}
	have, err := c.driver.Policy.PodDisruptionBudgets(c.key.Namespace).Get(ctx, c.key.Name, metav1.GetOptions{})
	if ignoreNotFound(err) != nil {
		return explain("read", kindBudget, c.key, err)
	}
	exists := err == nil
	switch {
	case !c.spec.BlockEviction:
		return c.removeBudget(ctx, have, exists)
	case r == nil && !exists, r != nil && r.UID != "" && !exists:
		return c.recordFirst(newIntent(kindBudget, c.key.Name))
	case !exists:
		return c.createBudget(ctx, r.Nonce)
	}
	if err := c.checkRecorded(kindBudget, have); err != nil {
		return err
	}
	return c.updateBudget(ctx, have)
}

func (c *convergence) createBudget(ctx context.Context, nonce string) error {
	created, err := c.driver.Policy.PodDisruptionBudgets(c.key.Namespace).Create(ctx, c.driver.newBudget(c.spec, nonce), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return takenError(kindBudget, c.key) // the next call reads it
	}
	c.budget = created
	return explain("create", kindBudget, c.key, err)
}

// updateBudget gives the PodDisruptionBudget back what others have changed.
func (c *convergence) updateBudget(ctx context.Context, have *policyv1.PodDisruptionBudget) error {
	c.budget = have
	wanted := c.driver.newBudget(c.spec, "")
	if equality.Semantic.DeepEqual(have.Spec, wanted.Spec) && equality.Semantic.DeepEqual(have.OwnerReferences, wanted.OwnerReferences) {
		return nil
	}
	next := have.DeepCopy()
	next.Spec, next.OwnerReferences = wanted.Spec, wanted.OwnerReferences
	if err := enterEpoch(next, c.spec.Epoch); err != nil {
		return err
	}
	_, err := c.driver.Policy.PodDisruptionBudgets(c.key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	return explain("change", kindBudget, c.key, err)
}

// removeBudget removes the PodDisruptionBudget if it is the server's, and has its record removed.
func (c *convergence) removeBudget(ctx context.Context, have *policyv1.PodDisruptionBudget, exists bool) error {
	if exists && c.checkRecorded(kindBudget, have) == nil {
		err := c.driver.Policy.PodDisruptionBudgets(c.key.Namespace).Delete(ctx, have.Name, metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion},
		})
		if ignoreNotFound(err) != nil {
			return explain("delete", kindBudget, c.key, err)
		}
	}
	c.hasNoBudget = true
	return nil
}
