// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Claims maps the names of disks to the server's PVCs. The PVC of the root disk also records which pod may
// run and how the pod has ended.
type Claims map[string]*corev1.PersistentVolumeClaim

// Root returns the PVC of the root disk, nil if there is none.
func (c Claims) Root() *corev1.PersistentVolumeClaim { return c[objects.RootDisk] }

// All returns the PVCs, sorted by the names of their disks. The PVC of the root disk comes first.
func (c Claims) All() (all []*corev1.PersistentVolumeClaim) {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if claim := c[name]; claim != nil {
			all = append(all, claim)
		}
	}
	return all
}

// Volumes returns the PVCs of volumes in the order of their names.
func (c Claims) Volumes() []*corev1.PersistentVolumeClaim {
	return slices.DeleteFunc(c.All(), func(claim *corev1.PersistentVolumeClaim) bool { return claim == c.Root() })
}

// isDeleted reports whether the disks are being deleted. It looks only at the first.
func (c Claims) isDeleted() bool {
	all := c.All()
	return len(all) > 0 && all[0].DeletionTimestamp != nil
}

// DeletedClaim returns a PVC that p uses although someone has deleted the PVC, or nil. The PVC remains while
// the pod exists.
func (c Claims) DeletedClaim(p *corev1.Pod) *corev1.PersistentVolumeClaim {
	for _, claim := range c.All() {
		if claim.DeletionTimestamp != nil && p != nil && objects.UsesClaim(p, claim.Name) {
			return claim
		}
	}
	return nil
}

// Replace replaces a PVC by its updated version.
func (c Claims) Replace(claim, updated *corev1.PersistentVolumeClaim) {
	for name, known := range c {
		if known == claim {
			c[name] = updated
		}
	}
}

// hasGrown reports whether a volume is larger than when the running pod's disk on it was made.
func (c Claims) hasGrown(p *corev1.Pod) bool {
	if _, ok := MachineOf(p); !ok {
		return false
	}
	for name, kept := range objects.ReadSettings(p).Disks {
		if claim := c[name]; claim != nil && objects.RoomOf(claim) > kept.RoomBytes {
			return true
		}
	}
	return false
}

// endRecord is the value of AnnotationEnd.
type endRecord struct {
	Pod  types.UID    `json:"pod"`
	Exit *driver.Exit `json:"exit,omitempty"`
	// Disruption is the value for driver.Server.Disruption.
	Disruption string `json:"disruption,omitempty"`
}

// lastEnd returns the recorded end of the last pod that has ended. A damaged record counts as none.
func (c Claims) lastEnd() (end endRecord) {
	root := c.Root()
	if root == nil || json.Unmarshal([]byte(root.Annotations[objects.AnnotationEnd]), &end) != nil {
		return endRecord{}
	}
	if end.Disruption = ends.TruncateText(end.Disruption); end.Exit != nil { // users can change annotations
		end.Exit.Reason, end.Exit.Output = ends.TruncateText(end.Exit.Reason), ends.TruncateText(end.Exit.Output)
	}
	return end
}

// HasEnded reports whether it is recorded that a pod has ended or never ran.
func (c Claims) HasEnded(pod types.UID) bool {
	root := c.Root()
	return pod != "" && root != nil && (c.lastEnd().Pod == pod || root.Annotations[objects.AnnotationNeverRan] == string(pod))
}

// lacksEnd reports whether the end of the last pod that could run is neither recorded nor asserted.
// Environment.PodAssertedOff returns the asserted pod.
func (c Claims) lacksEnd(asserted types.UID) bool {
	if c.Root() == nil {
		return false
	}
	run := types.UID(c.Root().Annotations[objects.AnnotationRun])
	return run != "" && !c.HasEnded(run) && run != asserted
}

// readClaims reads the disks' PVCs from the API server, not from a cache.
func (i *Instance) readClaims(ctx context.Context, names []string) error {
	for _, name := range names {
		key := types.NamespacedName{Namespace: i.Key.Namespace, Name: objects.ClaimName(i.Key.Name, name)}
		claim, err := i.reader.Client.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if i.Claims[name], err = keepOwn(i, claim, err); err != nil {
			return objects.Explain("read", objects.KindClaim, key, err)
		}
	}
	return nil
}

// listClaims lists the PVCs of the root disk and of all volumes that the server has ever had. It reads them
// from the API server, not from a cache.
func (i *Instance) listClaims(ctx context.Context) error {
	listed, err := i.reader.Client.PersistentVolumeClaims(i.Key.Namespace).List(ctx, metav1.ListOptions{LabelSelector: objects.Selector(i.reader.ClusterID, i.UID)})
	if err != nil {
		return objects.Explain("list", objects.KindClaim, i.Key, err)
	}
	for _, claim := range pointersTo(listed.Items) {
		if i.takeClaim(claim) {
			i.Note(claim)
		}
	}
	return nil
}

// takeClaim adds a PVC that has the labels of the server, and reports whether it did. It ignores a foreign
// PVC, and a PVC whose name is not the expected name for its disk.
func (i *Instance) takeClaim(claim *corev1.PersistentVolumeClaim) (taken bool) {
	name := claim.Labels[objects.LabelVolume]
	if claim.Namespace != i.Key.Namespace || claim.Name != objects.ClaimName(i.Key.Name, name) || objects.IsForeignClaim(claim) {
		return false
	}
	i.Claims[name] = claim
	return true
}

// mayHaveClaims reports whether the server may have PVCs. If its pod is ephemeral, there are none, unless
// the pod is labelled as released.
func (i *Instance) mayHaveClaims() bool {
	return i.Pod == nil || !objects.IsEphemeral(i.Pod) || i.IsRetained()
}

// takeKnownClaims adds the PVCs from the informers of an open watch, and reports whether it did. It does
// nothing if the informers lack a version that this process has read or written. It also needs a pod that
// was read from the API server and not released, because a cache cannot prove that a server is gone or was
// released.
func (i *Instance) takeKnownClaims() bool {
	if i.Pod == nil {
		return false
	}
	watched := i.reader.Watched.Load()
	if watched == nil || !isUpToDate(watched.Claims, i.reader.claims.Load()) {
		return false
	}
	for _, claim := range byUID[*corev1.PersistentVolumeClaim](watched.Claims, []types.UID{i.UID}) {
		i.takeClaim(claim)
	}
	if i.IsRetained() {
		clear(i.Claims)
		return false
	}
	return true
}
