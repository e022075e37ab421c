// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
)

// resolveImages returns the digests by which the next pod names images that the spec names by tag. A tag
// keeps its digest from the pod before, and stays a tag if no machine could be started with the digest.
// The tags of an ephemeral server with pull policy Always are resolved again.
func (r records) resolveImages(ctx context.Context) []driver.ResolvedImage {
	known := objects.KnownImages(r.spec)
	var all []driver.ResolvedImage
	var unknown []source.Source
	for _, from := range r.driver.Objects.TaggedImages(r.spec) {
		if found := objects.FindResolved(known, from); found != nil && (found.Digest != "" || found.Unproven) {
			all = append(all, *found)
		} else {
			unknown = append(unknown, from)
		}
	}
	if len(unknown) == 0 || r.driver.images.Resolve == nil {
		return all
	}
	return append(all, r.driver.images.Digests(ctx, unknown)...)
}

// endedImages returns the record of the images of a pod that has ended. A digest from which no container
// was created is dropped, unless the server has run with it before: nodes that got an image from a file or
// a mirror may have it only by its tag.
func endedImages(p *corev1.Pod, images []driver.ResolvedImage) []driver.ResolvedImage {
	kept := slices.Clone(images)
	isUsed, hasFailed := ends.ImageUse(p)
	for n := range kept {
		switch i := &kept[n]; {
		case !i.Unproven || i.Digest == "":
		case isUsed:
			i.Unproven = false
		case hasFailed:
			i.Digest, i.Message = "", "no machine was started with its digest "+i.Digest
		}
	}
	return kept
}

// checkImageSize refuses a spec whose image is larger than its disk, as the machine of the last pod has
// reported. That pod is kept as the evidence until the size or the image in the spec changes, or a person
// deletes the pod. The image of a volume never changes.
func (c *convergence) checkImageSize(ctx context.Context) error {
	name, needs, isKnown := ends.LargeImage(c.server.Pod)
	has, wants := objects.ReadSettings(c.server.Pod), c.driver.Objects.Settings(c.spec, c.digests)
	isOther := name == objects.RootDisk && (has.Image != wants.Image || has.Checksum != wants.Checksum)
	of, from := objects.FindDisk(c.spec, name, wants.Image)
	if !isKnown || isOther || of == nil || c.server.Pod.DeletionTimestamp != nil {
		return nil
	}
	claim := c.server.Claims[name]
	switch {
	case of.Bytes >= needs:
		return c.claims.growClaim(ctx, *of)
	case of.Bytes > 0:
		return driver.Errorf(driver.ErrInvalid, "%s is %s: the image %s needs %s", of.Field, kit.FormatBytes(of.Bytes), from, kit.FormatBytes(needs))
	case claim == nil || objects.DiskIn(objects.RoomOf(claim)) >= needs:
		return nil
	}
	return driver.Errorf(driver.ErrInvalid, "%s is not set, and %s has room for a disk of %s: the image %s needs %s",
		of.Field, objects.Describe(objects.KindClaim, claim), kit.FormatBytes(objects.DiskIn(objects.RoomOf(claim))), from, kit.FormatBytes(needs))
}

// hasResolved reports whether the record of the next pod has the images of the spec, which may have
// changed since.
func (r records) hasResolved(recorded *driver.Object) bool {
	lacks := func(from source.Source) bool { return objects.FindResolved(recorded.Images, from) == nil }
	return len(recorded.Images) == 0 || r.driver.images.Resolve == nil || !slices.ContainsFunc(r.driver.Objects.TaggedImages(r.spec), lacks)
}

// recordMadeDisks records in the spec's objects which disks the machine of the pod has made, and from
// which image the root disk. From then on no other disk is made in their place, even if a volume comes
// back empty.
func (r records) recordMadeDisks() {
	if r.spec.Ephemeral {
		return
	}
	r.spec.Objects = slices.Clone(r.spec.Objects)
	if r.server.Pod == nil {
		objects.RecordDisksOfLostPod(r.spec)
		return
	}
	kept := objects.ReadSettings(r.server.Pod)
	for name := range kept.Disks {
		found := r.find(objects.KindClaim, objects.ClaimName(r.server.Key.Name, name))
		if found == nil || found.Made || !r.server.HasMadeDisk(name) {
			continue
		}
		found.Made = true
		if name == objects.RootDisk {
			digest := cmp.Or(r.server.Server().ImageID, kept.Checksum) // drover-machine has verified the checksum before it made the disk
			if !image.IsDigest(digest) {                               // it is from an annotation of the pod, which users may change
				digest = ""
			}
			found.Images = []driver.ResolvedImage{{Source: kept.Image, Digest: digest}}
		}
	}
}
