// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// readBudgets finds the servers whose PodDisruptionBudget others have deleted or changed. Only complete
// lists call it, because no event reports that; other lists use what it found last. An outdated result
// does no harm, since an Ensure follows and reads the PodDisruptionBudget live. An error is logged and not
// returned, because nothing else in a list needs the result.
func (r *Reader) readBudgets(ctx context.Context, all []*Instance) {
	blocked := map[types.UID]*Instance{}
	for _, i := range all {
		if i.Pod != nil && i.Pod.Annotations[objects.AnnotationEviction] != "" {
			blocked[i.UID] = i
		}
	}
	r.lackingBudget.DeleteFunc(func(uid types.UID, _ bool) bool { return blocked[uid] == nil })
	if len(blocked) == 0 {
		return
	}
	listed, err := r.Policy.PodDisruptionBudgets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(r.ClusterID)})
	if err != nil {
		r.Log.Info("PodDisruptionBudgets cannot be read", "cause", err.Error())
		return
	}
	intact := map[types.NamespacedName]bool{}
	for n := range listed.Items {
		b := &listed.Items[n]
		intact[types.NamespacedName{Namespace: b.Namespace, Name: b.Name}] = objects.BlocksEviction(b, types.UID(b.Labels[objects.LabelUID]))
	}
	for uid, i := range blocked {
		if intact[i.Key] {
			r.lackingBudget.Delete(uid)
		} else {
			r.lackingBudget.Store(uid, true)
		}
	}
}

// NoteBudget records that a server has the PodDisruptionBudget that it should have, or none.
func (r *Reader) NoteBudget(uid types.UID) { r.lackingBudget.Delete(uid) }
