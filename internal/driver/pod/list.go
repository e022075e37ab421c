// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"errors"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// List implements driver.Driver. It reads live.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	found, err := d.listObjects(ctx, uids...)
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		d.forgetMachines(found)
	}
	var servers []driver.Server
	for _, i := range found {
		if s := i.toServer(); len(uids) == 0 || !s.Retained {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// listObjects returns the instances that have objects: all, or those of UIDs. Objects that claim
// the UID of a VirtualMachine under another name than its own are left out.
func (d *Driver) listObjects(ctx context.Context, uids ...types.UID) ([]*instance, error) {
	if len(uids) == 1 {
		if _, known := d.ownerOf(uids[0]); known {
			return d.readObjects(ctx, uids[0])
		}
	}
	options := metav1.ListOptions{LabelSelector: d.selector(uids...)}
	pods, err := d.Client.Pods(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, explain("list", kindPod, types.NamespacedName{}, err)
	}
	claims, err := d.Client.PersistentVolumeClaims(metav1.NamespaceAll).List(ctx, options)
	if err != nil {
		return nil, explain("list", kindClaim, types.NamespacedName{}, err)
	}
	byKey := map[types.NamespacedName]*instance{}
	for n := range pods.Items {
		if i := d.instanceOf(byKey, &pods.Items[n], uids); i != nil {
			i.pod = &pods.Items[n]
		}
	}
	for n := range claims.Items {
		if i := d.instanceOf(byKey, &claims.Items[n], uids); i != nil {
			i.setClaim(claims.Items[n].Labels[LabelVolume], &claims.Items[n])
		}
	}
	found := sorted(byKey)
	for _, i := range found {
		if err := i.readNode(ctx); err != nil {
			return nil, err
		}
	}
	return found, nil
}

// readObjects returns the instance of a UID whose VirtualMachine is known, by the names of its
// objects: to select them by labels, the API server would look at all of the cluster.
func (d *Driver) readObjects(ctx context.Context, uid types.UID) ([]*instance, error) {
	i, err := d.find(ctx, driver.Target{UID: uid})
	if errors.Is(err, driver.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return []*instance{i}, nil
}

func sorted(byKey map[types.NamespacedName]*instance) []*instance {
	all := make([]*instance, 0, len(byKey))
	for _, i := range byKey {
		all = append(all, i)
	}
	slices.SortFunc(all, func(a, b *instance) int { return strings.Compare(a.id(), b.id()) })
	return all
}

// instanceOf returns the instance that an object belongs to, or nil.
func (d *Driver) instanceOf(byKey map[types.NamespacedName]*instance, o metav1.Object, uids []types.UID) *instance {
	uid, vm := types.UID(o.GetLabels()[LabelUID]), o.GetLabels()[LabelName]
	if len(uids) > 0 && !slices.Contains(uids, uid) || !d.isNamed(o) {
		return nil
	}
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: baseName(vm, uid)}
	if byKey[key] == nil {
		byKey[key] = &instance{driver: d, key: key, uid: uid, vm: vm}
	}
	return byKey[key]
}

// isNamed reports whether an object has the name that an object of its server has, and is where
// the VirtualMachine is, as far as that is known.
func (d *Driver) isNamed(o metav1.Object) bool {
	uid, vm := types.UID(o.GetLabels()[LabelUID]), o.GetLabels()[LabelName]
	owner, known := d.ownerOf(uid)
	return driver.CheckUID(uid) == nil && o.GetName() == claimName(baseName(vm, uid), o.GetLabels()[LabelVolume]) &&
		(!known || owner.Namespace == o.GetNamespace() && owner.Name == vm)
}
