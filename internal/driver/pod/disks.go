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
	*call
	records records
}

// ensureClaim creates the PVC of a disk unless it exists. It never creates a second one, since an empty
// disk would take the place of one that is gone.
func (c claims) ensureClaim(ctx context.Context, disk objects.Disk) error {
	if claim := c.server.Claims[disk.Name]; claim != nil {
		return c.records.check(objects.KindClaim, claim)
	}
	key := types.NamespacedName{Namespace: c.server.Key.Namespace, Name: objects.ClaimName(c.server.Key.Name, disk.Name)}
	recorded := c.records.find(objects.KindClaim, key.Name)
	switch {
	case recorded == nil:
		return objects.RecordFirst(c.spec.Objects, nil, c.records.newIntents(ctx)...)
	case recorded.UID != "":
		return objects.LostClaimError(key, recorded.UID, disk, c.unlabelledClaim(key.Name))
	}
	created, err := c.driver.Client.PersistentVolumeClaims(key.Namespace).Create(ctx, c.driver.Objects.NewClaim(c.spec, disk, recorded.Nonce), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		if err := c.server.Read(ctx); err != nil {
			return err
		}
		if c.server.Claims[disk.Name] == nil { // neither an earlier try nor another leader has made it
			return objects.TakenError(objects.KindClaim, key)
		}
		return c.ensureClaim(ctx, disk)
	}
	if err == nil {
		c.server.Note(created)
		c.server.Claims[disk.Name] = created
	}
	return objects.Explain("create", objects.KindClaim, key, err)
}

// unlabelledClaim returns the PVC of a name that lacks the labels of the server, nil if there is none.
func (c claims) unlabelledClaim(name string) metav1.Object {
	for _, o := range c.server.Unlabelled {
		if claim, ok := o.(*corev1.PersistentVolumeClaim); ok && claim.Name == name {
			return claim
		}
	}
	return nil
}

// fittedSpec returns the spec with disks that fit into their volumes.
func (c claims) fittedSpec() driver.ServerSpec {
	spec := c.spec
	spec.RootDiskBytes, spec.Volumes = objects.Fit(spec.RootDiskBytes, c.server.Claims.Root()), slices.Clone(spec.Volumes)
	for n, v := range spec.Volumes {
		spec.Volumes[n].SizeBytes = objects.Fit(v.SizeBytes, c.server.Claims[v.Name])
	}
	return spec
}

// diskSettings returns the settings of the disks that a pod would have now.
func (c claims) diskSettings() map[string]objects.DiskSettings {
	all := map[string]objects.DiskSettings{}
	for _, of := range objects.DisksOf(c.spec) {
		if claim := c.server.Claims[of.Name]; claim != nil {
			all[of.Name] = objects.DiskSettings{Bytes: objects.Fit(of.Bytes, claim), RoomBytes: objects.RoomOf(claim)}
		}
	}
	return all
}

// growDisks enlarges the PVCs as far as their storage class allows, and the disks of a running guest as
// far as their volumes have grown.
func (c claims) growDisks(ctx context.Context) error {
	var errs []error
	for _, of := range objects.DisksOf(c.spec) {
		errs = append(errs, c.growClaim(ctx, of))
	}
	return errors.Join(append(errs, c.growGuest(ctx))...)
}

// growClaim enlarges the PVC of a disk to the size in the spec.
func (c claims) growClaim(ctx context.Context, disk objects.Disk) error {
	claim, wanted := c.server.Claims[disk.Name], objects.ClaimSize(disk.Bytes)
	isOurs := claim != nil && c.records.check(objects.KindClaim, claim) == nil
	if !isOurs || disk.Bytes == 0 || claim.Status.Phase != corev1.ClaimBound {
		return nil
	}
	has := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if wanted.Cmp(has) <= 0 {
		return nil
	}
	err := c.writer.updateClaim(ctx, claim, func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = wanted
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: the PVC has %s and needs %s: %w", disk.Field, objects.DescribeSize(has), objects.DescribeSize(wanted), err)
}

// growGuest enlarges the disks of a guest that runs, and records that on the pod.
func (c claims) growGuest(ctx context.Context) error {
	if c.server.Pod == nil {
		return nil
	}
	at, ok := instance.MachineOf(c.server.Pod)
	kept := objects.ReadSettings(c.server.Pod)
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
	return c.writer.annotatePod(ctx, objects.AnnotationSettings, string(content))
}

// nextDisks returns the settings that the disks of a pod should have now, and the sizes of those that are
// to grow. A disk that has left the spec is kept until it is recorded as made, so that no other disk is
// made in its place.
func (c claims) nextDisks(present map[string]objects.DiskSettings) (next map[string]objects.DiskSettings, sizes control.Sizes) {
	wanted := c.diskSettings()
	next, sizes.Volumes = map[string]objects.DiskSettings{}, map[string]int64{}
	for name, before := range present {
		if r := c.records.find(objects.KindClaim, objects.ClaimName(c.server.Key.Name, name)); r != nil && !r.Made {
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
func (c claims) markClaims(ctx context.Context) error {
	for _, claim := range c.server.Claims.Volumes() {
		if claim.Annotations[objects.AnnotationClaim] != "" {
			continue
		}
		if err := c.writer.updateClaim(ctx, claim, objects.MarkClaim); err != nil {
			return err
		}
	}
	if c.server.Claims.Root() == nil || c.server.Claims.Root().Annotations[objects.AnnotationRun] == string(c.server.Pod.UID) {
		return nil
	}
	return c.writer.updateClaim(ctx, c.server.Claims.Root(), func(root *corev1.PersistentVolumeClaim) {
		objects.MarkClaim(root)
		objects.RecordIdentity(root, c.spec.UID)
		metav1.SetMetaDataAnnotation(&root.ObjectMeta, objects.AnnotationRun, string(c.server.Pod.UID))
	})
}
