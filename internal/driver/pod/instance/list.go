// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// List returns the instances that have objects: all, or those of UIDs.
//
// A single UID is read live. Other lists are read from the informers of an open watch, once these have all
// versions that this process has read and written. The first list of all is live, and then one every
// liveListPeriod. A known VirtualMachine is read by the names of its objects, in one request.
//
// A refresh (driver.ForRefresh) of a single unknown UID is also read from the informers. Any tenant can
// label pods with unknown UIDs, and a live list would read the whole cluster for each. Objects that claim
// the UID of a VirtualMachine under another name are left out.
func (r *Reader) List(ctx context.Context, uids ...types.UID) ([]*Instance, error) {
	if len(uids) == 1 {
		if owner, known := r.OwnerOf(uids[0]); known {
			return r.readObjects(ctx, uids[0], owner.NamespacedName)
		}
	}
	found, err := r.listByLabels(ctx, uids...)
	if err == nil && len(uids) == 0 {
		r.readBudgets(ctx, found)
	}
	return found, err
}

// listByLabels returns the instances of the objects that have the labels of servers.
func (r *Reader) listByLabels(ctx context.Context, uids ...types.UID) ([]*Instance, error) {
	pods, claims, err := r.listObjects(ctx, uids)
	if err != nil {
		return nil, err
	}
	byKey, wanted := map[types.NamespacedName]*Instance{}, sets.New(uids...)
	for _, p := range pods {
		if i := r.instanceOf(byKey, p, wanted); i != nil {
			i.Pod = p
		}
	}
	for _, claim := range claims {
		if i := r.instanceOf(byKey, claim, wanted); i != nil {
			i.Claims[claim.Labels[objects.LabelVolume]] = claim
		}
	}
	found := sortByID(byKey)
	r.readNodes(ctx, found, len(uids) == 0)
	return found, nil
}

// listObjects returns the objects of servers from the informers, or from the API server if the informers are out of
// date.
func (r *Reader) listObjects(ctx context.Context, uids []types.UID) ([]*corev1.Pod, []*corev1.PersistentVolumeClaim, error) {
	if isAll := len(uids) == 0; len(uids) > 1 || isAll && !r.isLiveListDue() || driver.IsRefresh(ctx) {
		if fresh := r.freshInformers(ctx); fresh != nil {
			return byUID[*corev1.Pod](fresh.Pods, uids), byUID[*corev1.PersistentVolumeClaim](fresh.Claims, uids), nil
		}
	}
	began := r.Clock.Now()
	options := metav1.ListOptions{LabelSelector: objects.Selector(r.ClusterID, uids...)}
	pods, err := r.listPods(ctx, options)
	if err != nil {
		return nil, nil, err
	}
	claims, err := r.Client.PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, nil, objects.Explain("list", objects.KindClaim, types.NamespacedName{}, err)
	}
	if len(uids) == 0 {
		r.lastLiveList.Store(&began)
	}
	foundClaims := pointersTo(claims.Items)
	for _, p := range pods {
		r.noteVersion(p)
	}
	for _, claim := range foundClaims {
		r.noteVersion(claim)
	}
	return pods, foundClaims, nil
}

// listPods lists pods in one request.
func (r *Reader) listPods(ctx context.Context, options metav1.ListOptions) ([]*corev1.Pod, error) {
	listed, err := r.Client.Pods(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, objects.Explain("list", objects.KindPod, types.NamespacedName{}, err)
	}
	return pointersTo(listed.Items), nil
}

// KnownPods returns the pods of servers that were not released, all such pods if no UID is given. It reads
// them from the informers of an open watch, or from the API server if no watch is open. The pods may be out
// of date, and callers must not change them.
func (r *Reader) KnownPods(ctx context.Context, uids ...types.UID) (pods []*corev1.Pod, err error) {
	if watched := r.Watched.Load(); watched != nil {
		pods = byUID[*corev1.Pod](watched.Pods, uids)
	} else if pods, err = r.listPods(ctx, metav1.ListOptions{LabelSelector: objects.Selector(r.ClusterID, uids...)}); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		return !r.IsNamed(p) || p.Labels[objects.LabelRetained] != "" || len(uids) > 0 && !slices.Contains(uids, types.UID(p.Labels[objects.LabelUID]))
	}), nil
}

// ListReleased returns the pods of released servers and of UIDs, from the informers or else from the cache
// of an API server. They may be out of date, so a caller reads each again before it acts.
func (r *Reader) ListReleased(ctx context.Context, uids []types.UID) ([]*corev1.Pod, error) {
	isOther := func(p *corev1.Pod) bool {
		return p.Labels[objects.LabelRetained] == "" && !slices.Contains(uids, types.UID(p.Labels[objects.LabelUID]))
	}
	if fresh := r.freshInformers(ctx); fresh != nil {
		return slices.DeleteFunc(byUID[*corev1.Pod](fresh.Pods, nil), isOther), nil
	}
	selector := objects.Selector(r.ClusterID)
	if len(uids) == 0 {
		selector += "," + objects.LabelRetained
	}
	pods, err := r.listPods(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
	return slices.DeleteFunc(pods, isOther), err
}

// isLiveListDue reports whether no complete list was live within liveListPeriod. Lists have to be live at
// times because the watches of an API server may stall unnoticed.
func (r *Reader) isLiveListDue() bool {
	last := r.lastLiveList.Load()
	return last == nil || r.Clock.Since(*last) >= liveListPeriod
}

// pointersTo returns pointers to the items of a list.
func pointersTo[T any](items []T) []*T {
	all := make([]*T, len(items))
	for n := range items {
		all[n] = &items[n]
	}
	return all
}

// readObjects returns the instance of a known VirtualMachine, by the names of its objects: the API server
// would have to look at the whole cluster to select them by labels. The pod is read live, and without a
// pod so are the PVCs. So a server that is missing in the result is gone.
func (r *Reader) readObjects(ctx context.Context, uid types.UID, owner types.NamespacedName) ([]*Instance, error) {
	i := r.newInstance(uid, owner)
	if err := i.readPod(ctx); err != nil {
		return nil, err
	}
	if i.mayHaveClaims() && !i.takeKnownClaims() {
		if err := i.listClaims(ctx); err != nil {
			return nil, err
		}
	}
	if !i.Exists() {
		return nil, nil
	}
	return []*Instance{i}, nil
}

// sortByID returns instances in the order of their IDs.
func sortByID(byKey map[types.NamespacedName]*Instance) []*Instance {
	all := make([]*Instance, 0, len(byKey))
	for _, i := range byKey {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b *Instance) int { return strings.Compare(a.ID(), b.ID()) })
	return all
}

// instanceOf returns the instance that an object belongs to, nil if it belongs to none that is wanted.
func (r *Reader) instanceOf(byKey map[types.NamespacedName]*Instance, o metav1.Object, wanted sets.Set[types.UID]) *Instance {
	uid, vm := types.UID(o.GetLabels()[objects.LabelUID]), o.GetLabels()[objects.LabelName]
	if len(wanted) > 0 && !wanted.Has(uid) || !r.IsNamed(o) {
		return nil
	}
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: objects.BaseName(vm, uid)}
	if byKey[key] == nil {
		byKey[key] = r.newInstance(uid, types.NamespacedName{Namespace: key.Namespace, Name: vm})
	}
	return byKey[key]
}

// IsNamed reports whether an object has the name that its labels require and is not a foreign PVC. It must
// also be where its VirtualMachine is, if that is known.
func (r *Reader) IsNamed(o metav1.Object) bool {
	uid, vm := types.UID(o.GetLabels()[objects.LabelUID]), o.GetLabels()[objects.LabelName]
	owner, known := r.OwnerOf(uid)
	return driver.CheckUID(uid) == nil && !objects.IsForeignClaim(o) && o.GetName() == objects.ClaimName(objects.BaseName(vm, uid), o.GetLabels()[objects.LabelVolume]) &&
		(!known || owner.Namespace == o.GetNamespace() && owner.Name == vm)
}
