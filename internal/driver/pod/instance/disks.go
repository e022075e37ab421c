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
		if i.takeClaim(&listed.Items[n]) {
			i.Note(&listed.Items[n])
		}
	}
	return nil
}

// takeClaim takes a PVC that has the labels of the server, if it is not foreign and where it should be.
func (i *Instance) takeClaim(claim *corev1.PersistentVolumeClaim) (taken bool) {
	name := claim.Labels[objects.LabelVolume]
	if claim.Namespace != i.Key.Namespace || claim.Name != objects.ClaimName(i.Key.Name, name) || objects.IsForeignClaim(claim) {
		return false
	}
	i.SetClaim(name, claim)
	return true
}

// mayHaveClaims reports whether the server may have PVCs, as far as its pod says. The pod of an
// ephemeral server says that there are none, unless its label says that the server was released.
func (i *Instance) mayHaveClaims() bool {
	return i.Pod == nil || !objects.IsEphemeral(i.Pod) || i.IsRetained()
}

// takeKnownClaims takes the PVCs from the informers of an open watch, if these have all that this
// process has read and written. It reports false where they must be read live: the pod was, so its PVCs
// only say more of a server that is there; that nothing is there, or was released, they may not say.
func (i *Instance) takeKnownClaims() bool {
	if i.Pod == nil {
		return false
	}
	watched := i.reader.Watched.Load()
	if watched == nil || !isAsNew(watched.Claims, i.reader.claims.Load()) {
		return false
	}
	for _, claim := range byUID[*corev1.PersistentVolumeClaim](watched.Claims, []types.UID{i.UID}) {
		i.takeClaim(claim)
	}
	if i.IsRetained() {
		i.Root, i.volumes = nil, nil
		return false
	}
	return true
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
