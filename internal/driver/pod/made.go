// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/image"
)

// noteMade notes in the record of the server's objects which disks the machine of the pod has made, and from
// which image the root disk. From then on no other disk is made in their place, also if a volume comes
// back empty.
func (c *claims) noteMade() {
	if c.spec.Ephemeral {
		return
	}
	c.spec.Objects = slices.Clone(c.spec.Objects)
	if c.Pod == nil {
		c.noteMadeByLostPod()
		return
	}
	kept := objects.ReadSettings(c.Pod)
	for name := range kept.Disks {
		r := c.recorded(objects.KindClaim, objects.ClaimName(c.Key.Name, name))
		if r == nil || r.Made || !c.HasMadeDisk(name) {
			continue
		}
		r.Made = true
		if name == objects.RootDisk {
			digest := cmp.Or(c.Server().ImageID, kept.Checksum) // drover-machine has verified the checksum before it made the disk
			if !image.IsDigest(digest) {                        // it is from an annotation of the pod, which users may change
				digest = ""
			}
			r.Images = []driver.ResolvedImage{{Source: kept.Image, Digest: digest}}
		}
	}
}

// noteMadeByLostPod notes that the disks are made where the pod is gone without a proof of its end, and its
// guest was seen to run. From which image the root disk was made is not known any more.
func (s *record) noteMadeByLostPod() {
	pod := s.recorded(objects.KindPod, s.base)
	if pod == nil || pod.UID == "" || pod.Ended || string(pod.UID) != s.spec.SeenRun {
		return
	}
	for n, o := range s.spec.Objects {
		if o.Kind == objects.KindClaim && o.UID != "" {
			s.spec.Objects[n].Made = true
		}
	}
}

// madeDisks returns the disks of the spec that an earlier run has made, by name.
func (s *record) madeDisks() map[string]driver.ResolvedImage {
	made := map[string]driver.ResolvedImage{}
	for _, of := range objects.DisksOf(s.spec) {
		r := s.recorded(objects.KindClaim, objects.ClaimName(s.base, of.Name))
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

// refusedImage returns why a root disk that was made does not get the image of the spec, nil if it has that
// one, or that is not known, or the spec names none. With a kernel the image is also where that comes from.
func (s *record) refusedImage() *driver.Refused {
	r, wants := s.recorded(objects.KindClaim, s.base), s.spec.Image
	if r == nil || !r.Made || len(r.Images) == 0 {
		return nil
	}
	from := r.Images[0]
	if wants.Kernel != nil || wants.Source == "" || objects.IsSameImage(wants, from) {
		return nil
	}
	return &driver.Refused{Field: "image", Reason: driver.ReasonImageImmutable, Message: fmt.Sprintf(
		"spec.image.source is %s: the root disk was made from %s and holds data; name that one, or delete the VirtualMachine and create it again",
		image.Redact(wants.Source), cmp.Or(image.Redact(from.Source), "no image"))}
}
