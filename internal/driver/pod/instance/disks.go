// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Claim returns the PVC of a disk, nil if there is none.
func (i *Instance) Claim(name string) *corev1.PersistentVolumeClaim {
	if name == objects.RootDisk {
		return i.Root
	}
	return i.volumes[name]
}

// SetClaim takes the PVC of a disk as it was just read or written.
func (i *Instance) SetClaim(name string, claim *corev1.PersistentVolumeClaim) {
	if name == objects.RootDisk {
		i.Root = claim
		return
	}
	if i.volumes == nil {
		i.volumes = map[string]*corev1.PersistentVolumeClaim{}
	}
	i.volumes[name] = claim
}

// readClaims reads the PVCs of disks again, live.
func (i *Instance) readClaims(ctx context.Context, names []string) error {
	for _, name := range names {
		key := types.NamespacedName{Namespace: i.Key.Namespace, Name: objects.ClaimName(i.Key.Name, name)}
		claim, err := i.reader.Client.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if claim, err = own(i, claim, err); err != nil {
			return objects.Explain("read", objects.KindClaim, key, err)
		}
		i.SetClaim(name, claim)
	}
	return nil
}

// listClaims reads the PVCs of the root disk and of all volumes that the server has ever had, live.
func (i *Instance) listClaims(ctx context.Context) error {
	listed, err := i.reader.Client.PersistentVolumeClaims(i.Key.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(i.reader.ClusterID, i.UID)})
	if err != nil {
		return objects.Explain("list", objects.KindClaim, i.Key, err)
	}
	for n := range listed.Items {
		claim := &listed.Items[n]
		if name := claim.Labels[objects.LabelVolume]; claim.Name == objects.ClaimName(i.Key.Name, name) && !objects.IsCopy(claim) {
			i.Note(claim)
			i.SetClaim(name, claim)
		}
	}
	return nil
}

// Volumes returns the PVCs of volumes in the order of their names.
func (i *Instance) Volumes() []*corev1.PersistentVolumeClaim {
	var all []*corev1.PersistentVolumeClaim
	for _, name := range slices.Sorted(maps.Keys(i.volumes)) {
		if claim := i.volumes[name]; claim != nil {
			all = append(all, claim)
		}
	}
	return all
}

// hasGrown reports whether a volume of a pod that runs has more room than its disk was made for.
func (i *Instance) hasGrown() bool {
	if _, ok := MachineOf(i.Pod); !ok {
		return false
	}
	for name, kept := range i.Settings().Disks {
		if claim := i.Claim(name); claim != nil && objects.RoomOf(claim) > kept.RoomBytes {
			return true
		}
	}
	return false
}
