// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/image"
)

// resolveImages returns the digests by which the next pod names images that the spec names by tag. A
// tag keeps the digest of the pod before, and stays a tag if no machine could be started with the
// digest. With pull policy Always, the tags of an ephemeral server are resolved again.
func (c *claims) resolveImages(ctx context.Context) []driver.ResolvedImage {
	known := c.knownImages()
	var all []driver.ResolvedImage
	var unknown []string
	for _, source := range c.driver.Objects.TaggedImages(c.spec) {
		if found := objects.FindResolved(known, source); found != nil && (found.Digest != "" || found.Unproven) {
			all = append(all, *found)
		} else {
			unknown = append(unknown, source)
		}
	}
	if len(unknown) == 0 || c.driver.images.Resolve == nil {
		return all
	}
	return append(all, c.driver.images.Digests(ctx, unknown)...)
}

// endedImages returns what the record of the pod, which has ended, has of its images. Nodes that got an
// image from a file or a mirror may have it by its tag alone, so a digest from which no container was
// created there is dropped, unless the server has run with it before.
func (c *claims) endedImages(images []driver.ResolvedImage) []driver.ResolvedImage {
	kept := slices.Clone(images)
	isUsed, hasFailed := instance.ImageUse(c.Pod)
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

// checkImageSize refuses a spec whose image is larger than its disk, as the machine of the last pod has reported.
// That pod is kept as the evidence until its size or image in the spec changes, or a person deletes it. The
// image of a volume never changes.
func (c *convergence) checkImageSize(ctx context.Context) error {
	name, needs, isKnown := instance.LargeImage(c.Pod)
	has, wants := objects.ReadSettings(c.Pod), c.driver.Objects.Settings(c.spec, c.digests)
	isOther := name == objects.RootDisk && (has.Image != wants.Image || has.Checksum != wants.Checksum)
	of, source := findDisk(c.spec, name, wants.Image)
	if !isKnown || isOther || of == nil || c.Pod.DeletionTimestamp != nil {
		return nil
	}
	claim := c.Claims[name]
	switch {
	case of.Bytes >= needs:
		return c.growClaim(ctx, *of)
	case of.Bytes > 0:
		return driver.Errorf(driver.ErrInvalid, "%s is %s: the image %s needs %s", of.Field, kit.FormatBytes(of.Bytes), image.Redact(source), kit.FormatBytes(needs))
	case claim == nil || objects.DiskIn(objects.RoomOf(claim)) >= needs:
		return nil
	}
	return driver.Errorf(driver.ErrInvalid, "%s is not set, and %s has room for a disk of %s: the image %s needs %s",
		of.Field, objects.Describe(objects.KindClaim, claim), kit.FormatBytes(objects.DiskIn(objects.RoomOf(claim))), image.Redact(source), kit.FormatBytes(needs))
}

// findDisk returns a disk of a spec and its image, nil if the spec does not have it.
func findDisk(spec driver.ServerSpec, name, rootImage string) (of *objects.Disk, source string) {
	disks := objects.DisksOf(spec)
	if spec.Ephemeral {
		disks = append(disks, objects.Disk{Name: objects.RootDisk, Field: "spec.resource.rootDisk", Bytes: spec.RootDiskBytes})
	}
	source = rootImage
	for _, v := range spec.Volumes {
		if v.Name == name && v.Image != nil {
			source = v.Image.Source
		}
	}
	if n := slices.IndexFunc(disks, func(d objects.Disk) bool { return d.Name == name }); n >= 0 {
		of = &disks[n]
	}
	return of, source
}

// hasResolved reports whether the record of the next pod is for the images of the spec, which may
// have changed since.
func (c *claims) hasResolved(recorded *driver.Object) bool {
	if len(recorded.Images) == 0 || c.driver.images.Resolve == nil {
		return true
	}
	for _, source := range c.driver.Objects.TaggedImages(c.spec) {
		if objects.FindResolved(recorded.Images, source) == nil {
			return false
		}
	}
	return true
}

// knownImages returns the images of the pod before that the next one keeps. A pod that is lost may have
// run with them.
func (s *record) knownImages() (known []driver.ResolvedImage) {
	r := s.recorded(objects.KindPod, s.base)
	if r == nil {
		return nil
	}
	isLatest := s.spec.Ephemeral && s.spec.Image.PullPolicy == driver.PullAlways
	for _, i := range r.Images {
		if i.Digest != "" && isLatest {
			continue
		}
		if i.Digest != "" && r.UID != "" && !r.Ended {
			i.Unproven = false
		}
		known = append(known, i)
	}
	return known
}
