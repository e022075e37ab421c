// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/image"
)

// noteMade notes in the record of the server's objects which disks the machine of the pod has made, and from
// which image the root disk. From then on no other disk is made in their place, also if a volume comes
// back empty.
func (c *convergence) noteMade() {
	if c.spec.Ephemeral || !c.HasMadeDisks() {
		return
	}
	c.spec.Objects = slices.Clone(c.spec.Objects)
	kept := c.Settings()
	for name := range kept.Disks {
		r := c.recorded(objects.KindClaim, objects.ClaimName(c.Key.Name, name))
		if r == nil || r.Made {
			continue
		}
		r.Made = true
		if name == objects.RootDisk {
			digest := cmp.Or(c.Server().ImageID, kept.Checksum) // which was compared: the disk was made
			r.Images = []driver.ResolvedImage{{Source: kept.Image, Digest: sha256Only(digest)}}
		}
	}
}

var sha256Digest = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// sha256Only leaves out what is no SHA-256 digest, which the status has no room for: who may change the
// pod may have written it.
func sha256Only(digest string) string {
	if !sha256Digest.MatchString(digest) {
		return ""
	}
	return digest
}

// madeDisks returns the disks of the spec that an earlier run has made, by name.
func (c *convergence) madeDisks() map[string]driver.ResolvedImage {
	made := map[string]driver.ResolvedImage{}
	for _, of := range objects.DisksOf(c.spec) {
		r := c.recorded(objects.KindClaim, objects.ClaimName(c.Key.Name, of.Name))
		if r == nil || !r.Made {
			continue
		}
		made[of.Name] = driver.ResolvedImage{}
		if len(r.Images) > 0 {
			made[of.Name] = r.Images[0]
		}
	}
	return made
}

func (c *convergence) isRootMade() bool {
	r := c.recorded(objects.KindClaim, c.Key.Name)
	return r != nil && r.Made
}

// refusedImage returns why a root disk that was made does not get the image of the spec, nil if it has that
// one, or the spec names none. With a kernel the image is also where that comes from.
func (c *convergence) refusedImage() *driver.Refused {
	from, isMade := c.madeDisks()[objects.RootDisk]
	wants := c.spec.Image
	if !isMade || wants.Kernel != nil || wants.Source == "" || objects.IsSameImage(wants, from) {
		return nil
	}
	return &driver.Refused{Field: "image", Reason: driver.ReasonImageImmutable, Message: fmt.Sprintf(
		"spec.image.source is %s: the root disk was made from %s and holds data; name that one, or delete the VirtualMachine and create it again",
		image.Redact(wants.Source), describeSource(from.Source))}
}

func describeSource(source string) string {
	if source == "" {
		return "no image"
	}
	return image.Redact(source)
}
