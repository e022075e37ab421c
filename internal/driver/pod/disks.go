// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// claims ensures the PVCs and disks of a server, for one call of Ensure.
type claims struct {
	*writer
	spec   driver.ServerSpec // with the objects that the VirtualMachine's status has recorded
	driver *Driver
}

// ensureClaim creates the PVC of a disk unless it exists. It never creates a second one, since an empty
// disk would take the place of one that is gone.
func (c *claims) ensureClaim(ctx context.Context, disk objects.Disk) error {
	if claim := c.Claims[disk.Name]; claim != nil {
		return c.checkRecorded(objects.KindClaim, claim)
	}
	key := types.NamespacedName{Namespace: c.Key.Namespace, Name: objects.ClaimName(c.Key.Name, disk.Name)}
	recorded := c.recordedObject(objects.KindClaim, key.Name)
	switch {
	case recorded == nil:
		return c.recordFirst(nil, c.newIntents(ctx)...)
	case recorded.UID != "":
		return objects.LostClaimError(key, recorded.UID, disk, c.unlabelledClaim(key.Name))
	}
	created, err := c.driver.Client.PersistentVolumeClaims(key.Namespace).Create(ctx, c.driver.Objects.NewClaim(c.spec, disk, recorded.Nonce), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err := c.Read(ctx); err != nil {
			return err
		}
		if c.Claims[disk.Name] == nil { // neither an earlier try nor another leader has made it
			return objects.TakenError(objects.KindClaim, key)
		}
		return c.ensureClaim(ctx, disk)
	}
	if err == nil {
		c.Note(created)
		c.Claims[disk.Name] = created
	}
	return objects.Explain("create", objects.KindClaim, key, err)
}

// unlabelledClaim returns the PVC of a name that lacks the labels of the server, nil if there is none.
func (c *claims) unlabelledClaim(name string) metav1.Object {
	for _, o := range c.Unlabelled {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.Name == name {
			return claim
		}
	}
	return nil
}

// fittedSpec returns the spec with disks that fit into their volumes.
func (c *claims) fittedSpec() driver.ServerSpec {
	spec := c.spec
	spec.RootDiskBytes, spec.Volumes = objects.Fit(spec.RootDiskBytes, c.Claims.Root()), slices.Clone(spec.Volumes)
	for n, v := range spec.Volumes {
		spec.Volumes[n].SizeBytes = objects.Fit(v.SizeBytes, c.Claims[v.Name])
	}
	return spec
}

// diskSettings returns the settings of the disks that a pod would have now.
func (c *claims) diskSettings() map[string]objects.DiskSettings {
	all := map[string]objects.DiskSettings{}
	for _, of := range objects.DisksOf(c.spec) {
		if claim := c.Claims[of.Name]; claim != nil {
			all[of.Name] = objects.DiskSettings{Bytes: objects.Fit(of.Bytes, claim), RoomBytes: objects.RoomOf(claim)}
		}
	}
	return all
}

// growDisks enlarges the PVCs as far as their storage class allows, and the disks of a running guest as
// far as their volumes have grown.
func (c *claims) growDisks(ctx context.Context) error {
	var errs []error
	for _, of := range objects.DisksOf(c.spec) {
		errs = append(errs, c.growClaim(ctx, of))
	}
	return errors.Join(append(errs, c.growGuest(ctx))...)
}

// growClaim enlarges the PVC of a disk to the size in the spec.
func (c *claims) growClaim(ctx context.Context, disk objects.Disk) error {
	claim, wanted := c.Claims[disk.Name], objects.ClaimSize(disk.Bytes)
	isOurs := claim != nil && c.checkRecorded(objects.KindClaim, claim) == nil
	if !isOurs || disk.Bytes == 0 || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	has := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if wanted.Cmp(has) <= 0 {
		return nil
	}
	err := c.updateClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = wanted
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: the PVC has %s and needs %s: %w", disk.Field, objects.DescribeSize(has), objects.DescribeSize(wanted), err)
}

// growGuest enlarges the disks of a guest that runs, and records that on the pod.
func (c *claims) growGuest(ctx context.Context) error {
	if c.Pod == nil {
		return nil
	}
	at, ok := instance.MachineOf(c.Pod)
	kept := objects.ReadSettings(c.Pod)
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
	return c.annotatePod(ctx, objects.AnnotationSettings, string(content))
}

// nextDisks returns the settings that the disks of a pod should have now, and the sizes of those that are
// to grow. A disk that has left the spec is kept until it is recorded as made, so that no other disk is
// made in its place.
func (c *claims) nextDisks(present map[string]objects.DiskSettings) (next map[string]objects.DiskSettings, sizes control.Sizes) {
	wanted := c.diskSettings()
	next, sizes.Volumes = map[string]objects.DiskSettings{}, map[string]int64{}
	for name, before := range present {
		if r := c.recordedObject(objects.KindClaim, objects.ClaimName(c.Key.Name, name)); r != nil && !r.Made {
			next[name] = before
		}
	}
	for _, of := range objects.DisksOf(c.spec) {
		before, known := present[of.Name]
		if !known {
			continue // the next pod has it
		}
		next[of.Name] = objects.DiskSettings{Bytes: max(before.Bytes, wanted[of.Name].Bytes), RoomBytes: max(before.RoomBytes, wanted[of.Name].RoomBytes)}
		switch size := wanted[of.Name].Bytes; {
		case size <= before.Bytes, of.IsFixed:
		case of.Name == objects.RootDisk:
			sizes.RootDisk = size
		default:
			sizes.Volumes[of.Name] = size
		}
	}
	return next, sizes
}

// markClaims records on each PVC the UID of that PVC, and on the PVC of the root disk which pod may run.
func (c *claims) markClaims(ctx context.Context) error {
	for _, claim := range c.Claims.Volumes() {
		if claim.Annotations[objects.AnnotationClaim] != "" {
			continue
		}
		if err := c.updateClaim(ctx, claim, objects.MarkClaim); err != nil {
			return err
		}
	}
	if c.Claims.Root() == nil || c.Claims.Root().Annotations[objects.AnnotationRun] == string(c.Pod.UID) {
		return nil
	}
	return c.updateClaim(ctx, c.Claims.Root(), func(root *corev1.PersistentVolumeClaim) {
		objects.MarkClaim(root)
		metav1.SetMetaDataAnnotation(&root.ObjectMeta, objects.AnnotationRun, string(c.Pod.UID))
	})
}

// claimUID returns the UID of the PVC of a record, "" if there is none.
func (c *claims) claimUID(o driver.Object) types.UID {
	for _, of := range objects.DisksOf(c.spec) {
		if claim := c.Claims[of.Name]; claim != nil && claim.Name == o.Name && claim.Annotations[objects.AnnotationNonce] == o.Nonce {
			return claim.UID
		}
	}
	return ""
}

// recordClaims makes the caller record the UIDs of PVCs before it reports a failure: without them, an
// empty disk could replace one that is gone.
func (c *claims) recordClaims(failure error) error {
	if _, ok := errors.AsType[*driver.RecordFirstError](failure); ok || apierrors.IsConflict(failure) || driver.MayNotAct(failure) {
		return failure
	}
	var found []driver.Object
	for _, o := range c.spec.Objects {
		if uid := c.claimUID(o); o.Kind == objects.KindClaim && uid != "" && uid != o.UID {
			o.UID = uid
			found = append(found, o)
		}
	}
	if len(found) == 0 {
		return failure
	}
	return c.recordFirst(failure, found...)
}
