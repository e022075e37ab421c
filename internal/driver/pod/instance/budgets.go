// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// readBudgets finds the instances whose PodDisruptionBudget was deleted or changed by others. An error
// is logged and not returned, because a list does not need it for anything else.
func (r *Reader) readBudgets(ctx context.Context, all []*Instance) {
	var blocked []*Instance
	for _, i := range all {
		if i.Pod != nil && i.Pod.Annotations[objects.AnnotationEviction] != "" {
			blocked = append(blocked, i)
		}
	}
	if len(blocked) == 0 {
		return
	}
	budgets, err := r.listBudgets(ctx, blocked)
	if err != nil {
		r.Log.Info("PodDisruptionBudgets cannot be read", "cause", err.Error())
		return
	}
	for _, i := range blocked {
		budget, exists := budgets[i.Key]
		i.lacksBudget = !exists || !objects.BlocksEviction(&budget, i.UID)
	}
}

// listBudgets returns PodDisruptionBudgets by their names: that of one instance, or all.
func (r *Reader) listBudgets(ctx context.Context, of []*Instance) (map[types.NamespacedName]policyv1.PodDisruptionBudget, error) {
	options, namespace := metav1.ListOptions{LabelSelector: objects.Selector(r.ClusterID)}, metav1.NamespaceAll
	if len(of) == 1 {
		namespace = of[0].Key.Namespace
		options = metav1.ListOptions{FieldSelector: "metadata.name=" + of[0].Key.Name}
	}
	listed, err := r.Policy.PodDisruptionBudgets(namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	all := map[types.NamespacedName]policyv1.PodDisruptionBudget{}
	for _, b := range listed.Items {
		all[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = b
	}
	return all, nil
}
