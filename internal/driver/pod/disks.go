// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/control"
)

// rootDisk is the name of the root disk among disks. No volume can have it.
const rootDisk = ""

// disk is a disk of the spec.
type disk struct {
	name  string // of the volume, or rootDisk
	field string // of the spec, that has the size
	bytes int64
	// isFixed is set if the disk cannot grow.
	isFixed bool
}

// disksOf returns the disks of a spec that have PVCs.
func disksOf(spec driver.ServerSpec) []disk {
	var all []disk
	if !spec.Ephemeral {
		all = append(all, disk{rootDisk, "spec.resource.rootDisk", spec.RootDiskBytes, false})
	}
	for _, v := range spec.Volumes {
		all = append(all, disk{v.Name, fmt.Sprintf("spec.volumes[%s].size", v.Name), v.SizeBytes, v.ReadOnly})
	}
	return all
}

// claimName returns the name of the PVC of a disk.
func claimName(base, name string) string {
	if name == rootDisk {
		return base
	}
	return base + "-" + name
}

// newClaim returns the PVC of a disk.
func (d *Driver) newClaim(spec driver.ServerSpec, of disk, nonce string) *corev1.PersistentVolumeClaim {
	mode := corev1.PersistentVolumeFilesystem
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: d.newMeta(spec, claimName(baseName(spec.Name, spec.UID), of.name), nonce),
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.PersistentVolumeAccessMode(d.AccessMode)}, VolumeMode: &mode,
			StorageClassName: spec.StorageClassName,
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: claimSize(of.bytes)}},
		},
	}
	if of.name != rootDisk {
		claim.Labels[LabelVolume] = of.name
	}
	return claim
}

const (
	// defaultDiskBytes is the size of the PVC of a server that leaves the size to the driver.
	defaultDiskBytes = 10 << 30
	// claimOverheadBytes and claimOverheadShare are what a PVC has in addition to its disk: the
	// file system's own data, and that of the disk's format.
	claimOverheadBytes = 64 << 20
	claimOverheadShare = 16
)

// claimSize returns the size of the PVC that has room for a disk.
func claimSize(bytes int64) resource.Quantity {
	if bytes == 0 {
		bytes = defaultDiskBytes
	}
	return *resource.NewQuantity(bytes+bytes/claimOverheadShare+claimOverheadBytes, resource.BinarySI)
}

// roomOf returns the bytes that a volume has, or is to have while it is not there yet.
func roomOf(claim *corev1.PersistentVolumeClaim) int64 {
	room, ok := claim.Status.Capacity[corev1.ResourceStorage]
	if !ok {
		room = claim.Spec.Resources.Requests[corev1.ResourceStorage]
	}
	return room.Value()
}

// fit returns the size of a disk as far as its volume has room for it.
func fit(bytes int64, claim *corev1.PersistentVolumeClaim) int64 {
	if claim == nil || bytes == 0 {
		return bytes
	}
	size := claimSize(bytes)
	if room := roomOf(claim); room < size.Value() {
		return max(0, room-claimOverheadBytes) / (claimOverheadShare + 1) * claimOverheadShare
	}
	return bytes
}

// claim returns the PVC of a disk, nil if there is none.
func (i *instance) claim(name string) *corev1.PersistentVolumeClaim {
	if name == rootDisk {
		return i.root
	}
	return i.volumes[name]
}

func (i *instance) setClaim(name string, claim *corev1.PersistentVolumeClaim) {
	if name == rootDisk {
		i.root = claim
		return
	}
	if i.volumes == nil {
		i.volumes = map[string]*corev1.PersistentVolumeClaim{}
	}
	i.volumes[name] = claim
}

// readVolumes reads the PVCs of volumes again, live.
func (i *instance) readVolumes(ctx context.Context, names []string) error {
	for _, name := range names {
		key := types.NamespacedName{Namespace: i.key.Namespace, Name: claimName(i.key.Name, name)}
		claim, err := i.driver.Client.PersistentVolumeClaims(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
		if claim, err = own(i, claim, err); err != nil {
			return explain("read", kindClaim, key, err)
		}
		i.setClaim(name, claim)
	}
	return nil
}

// listVolumes reads the PVCs of all volumes that the server has ever had.
func (i *instance) listVolumes(ctx context.Context) error {
	listed, err := i.driver.Client.PersistentVolumeClaims(i.key.Namespace).List(ctx, metav1.ListOptions{LabelSelector: i.driver.selector(i.uid)})
	if err != nil {
		return explain("list", kindClaim, i.key, err)
	}
	for n := range listed.Items {
		claim := &listed.Items[n]
		if name := claim.Labels[LabelVolume]; name != rootDisk && claim.Name == claimName(i.key.Name, name) {
			i.setClaim(name, claim)
		}
	}
	return nil
}

// sortedVolumes returns the PVCs of volumes in the order of their names.
func (i *instance) sortedVolumes() []*corev1.PersistentVolumeClaim {
	var all []*corev1.PersistentVolumeClaim
	for _, name := range slices.Sorted(maps.Keys(i.volumes)) {
		if claim := i.volumes[name]; claim != nil {
			all = append(all, claim)
		}
	}
	return all
}

// ensureVolumes makes the PVCs of the volumes of the next pod.
func (c *convergence) ensureVolumes(ctx context.Context) error {
	for _, v := range c.spec.Volumes {
		if err := c.ensureClaim(ctx, disk{name: v.Name, bytes: v.SizeBytes}); err != nil {
			return err
		}
	}
	return nil
}

// ensureClaim makes the PVC of a disk, once.
func (c *convergence) ensureClaim(ctx context.Context, of disk) error {
	if claim := c.claim(of.name); claim != nil {
		return c.checkRecorded(kindClaim, claim)
	}
	key := types.NamespacedName{Namespace: c.key.Namespace, Name: claimName(c.key.Name, of.name)}
	recorded := c.recorded(kindClaim, key.Name)
	switch {
	case recorded == nil:
		return c.recordFirst(c.intents()...)
	case recorded.UID != "":
		return driver.WithReason(reasonVolumeLost, driver.Errorf(driver.ErrRetry,
			"the PVC %s with UID %s, which has the %s, is gone: restore it under this name and UID, or delete the VirtualMachine; no new disk is made in its place",
			key, recorded.UID, cmp.Or(prefixed("volume ", of.name), "root disk")))
	}
	created, err := c.driver.Client.PersistentVolumeClaims(key.Namespace).Create(ctx, c.driver.newClaim(c.spec, of, recorded.Nonce), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return c.readClaim(ctx, of, key)
	}
	if err == nil {
		c.setClaim(of.name, created)
	}
	return explain("create", kindClaim, key, err)
}

// prefixed returns a text with a prefix, or "" if there is none.
func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}

// readClaim reads a PVC whose name was taken, by an earlier try or another leader, or by what is
// foreign.
func (c *convergence) readClaim(ctx context.Context, of disk, key types.NamespacedName) error {
	if err := c.read(ctx); err != nil {
		return err
	}
	if c.claim(of.name) == nil {
		return takenError(kindClaim, key)
	}
	return c.checkRecorded(kindClaim, c.claim(of.name))
}

// fitted returns the spec with disks as large as their volumes have room for.
func (c *convergence) fitted() driver.ServerSpec {
	spec := c.spec
	spec.RootDiskBytes, spec.Volumes = fit(spec.RootDiskBytes, c.root), slices.Clone(spec.Volumes)
	for n, v := range spec.Volumes {
		spec.Volumes[n].SizeBytes = fit(v.SizeBytes, c.volumes[v.Name])
	}
	return spec
}

// diskSettings is what a disk of a pod was made or grown to.
type diskSettings struct {
	Bytes int64 `json:"bytes,omitempty"`
	// RoomBytes is what its volume had then.
	RoomBytes int64 `json:"roomBytes,omitempty"`
}

// diskSettings returns those of the disks that a pod would have now.
func (c *convergence) diskSettings() map[string]diskSettings {
	all := map[string]diskSettings{}
	for _, of := range disksOf(c.spec) {
		if claim := c.claim(of.name); claim != nil {
			all[of.name] = diskSettings{fit(of.bytes, claim), roomOf(claim)}
		}
	}
	return all
}

// hasGrown reports whether a volume of a pod that runs has more room than its disk was made for.
func (i *instance) hasGrown() bool {
	if _, ok := machineOf(i.pod); !ok {
		return false
	}
	for name, kept := range i.settings().Disks {
		if claim := i.claim(name); claim != nil && roomOf(claim) > kept.RoomBytes {
			return true
		}
	}
	return false
}

// growDisks enlarges the PVCs as far as their storage class allows that, and the disks of a guest
// that runs as far as the volumes have grown already.
func (c *convergence) growDisks(ctx context.Context) error {
	var errs []error
	for _, of := range disksOf(c.spec) {
		errs = append(errs, c.growClaim(ctx, of))
	}
	return errors.Join(append(errs, c.growGuest(ctx))...)
}

func (c *convergence) growClaim(ctx context.Context, of disk) error {
	claim, wanted := c.claim(of.name), claimSize(of.bytes)
	isOurs := claim != nil && c.checkRecorded(kindClaim, claim) == nil
	if !isOurs || of.bytes == 0 || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	has := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if wanted.Cmp(has) <= 0 {
		return nil
	}
	updated, err := c.updateClaim(ctx, c.spec.Epoch, claim, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = wanted
	})
	if err == nil {
		c.setClaim(of.name, updated)
		return nil
	}
	return fmt.Errorf("%s: the PVC has %s and needs %s: %w", of.field, describeSize(has), describeSize(wanted), err)
}

// growGuest enlarges the disks of a guest that runs. The pod records that.
func (c *convergence) growGuest(ctx context.Context) error {
	if c.pod == nil {
		return nil
	}
	at, ok := machineOf(c.pod)
	kept := c.settings()
	if !ok || kept.Disks == nil {
		return nil
	}
	next, sizes := c.nextDisks(kept.Disks)
	if maps.Equal(next, kept.Disks) {
		return nil
	}
	if sizes.RootDisk != 0 || len(sizes.Volumes) > 0 {
		if err := c.driver.machines.Grow(ctx, at, sizes); err != nil {
			return driver.Errorf(driver.ErrRetry, "disks of the machine cannot grow before its next restart: %w", err)
		}
	}
	kept.Disks = next
	content, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	return c.annotatePod(ctx, AnnotationSettings, string(content))
}

// nextDisks returns what the disks of a pod should have now, and the sizes of those that are to
// grow.
func (c *convergence) nextDisks(has map[string]diskSettings) (next map[string]diskSettings, sizes control.Sizes) {
	wanted := c.diskSettings()
	next, sizes.Volumes = map[string]diskSettings{}, map[string]int64{}
	for _, of := range disksOf(c.spec) {
		before, known := has[of.name]
		if !known {
			continue // the next pod has it
		}
		next[of.name] = diskSettings{max(before.Bytes, wanted[of.name].Bytes), max(before.RoomBytes, wanted[of.name].RoomBytes)}
		switch size := wanted[of.name].Bytes; {
		case size <= before.Bytes, of.isFixed:
		case of.name == rootDisk:
			sizes.RootDisk = size
		default:
			sizes.Volumes[of.name] = size
		}
	}
	return next, sizes
}
