// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/description"
)

// imageVolume is the name of the pod's volume with the image of the root disk.
const imageVolume = "image"

// diskImage is the image of a disk, with its source parsed.
type diskImage struct {
	image.Ref

	pullPolicy driver.PullPolicy
	kernel     *driver.Kernel
}

func parseImage(i driver.Image) diskImage {
	return diskImage{image.ParseRef(i.Source, i.Checksum), i.PullPolicy, i.Kernel}
}

// rootImage returns the image of the root disk, which is the default if the spec names none.
func (t *Template) rootImage(spec driver.ServerSpec) diskImage {
	i := spec.Image
	i.Source = cmp.Or(i.Source, t.Image)
	return parseImage(i)
}

// isContainerDisk reports whether the image is a container disk, which the kubelet pulls as a volume of the
// pod. The machine fetches any other image.
func (i diskImage) isContainerDisk() bool { return i.Source.Kind == source.RegistryDisk }

// needsImage reports whether a pod mounts the image of the root disk: to make the disk, or for the kernel.
func (t *Template) needsImage(spec driver.ServerSpec, run Run) bool {
	_, isMade := run.Made[RootDisk]
	return t.rootImage(spec).isContainerDisk() && (!isMade || spec.Image.Kernel != nil)
}

// needsImage reports whether a pod mounts the image of a volume, to make its disk.
func needsImage(v driver.Volume, run Run) bool {
	_, isMade := run.Made[v.Name]
	return v.Image != nil && parseImage(*v.Image).isContainerDisk() && !isMade
}

// isSameImage reports whether an image is the one that a disk was made from. It compares names and
// digests, and the checksums of images from web servers. If no checksum was recorded, the URLs have to be
// the same.
func isSameImage(i diskImage, resolved driver.ResolvedImage) bool {
	isNamed := i.Source.Text() == resolved.Source
	switch {
	case !i.isContainerDisk():
		return i.Checksum == resolved.Digest || resolved.Digest == "" && isNamed
	case isNamed:
		return true
	}
	digest := digestOf(i.Source.Name)
	return digest != "" && digest == resolved.Digest
}

// RefusedImage returns why a root disk cannot have an image, nil unless the record of the PVC names
// another one. An image with a kernel is not refused, since the kernel comes from that image.
func RefusedImage(wants driver.Image, claim *driver.Object) *driver.Refused {
	if claim == nil || !claim.Made || len(claim.Images) == 0 {
		return nil
	}
	from, named := claim.Images[0], parseImage(wants)
	if wants.Kernel != nil || named.Source.Kind == source.None || isSameImage(named, from) {
		return nil
	}
	return &driver.Refused{Field: "image", Reason: driver.ReasonImageImmutable, Message: fmt.Sprintf(
		"spec.image.source is %s: the root disk was made from %s and holds data; name that one, or create another VirtualMachine",
		named.Source, cmp.Or(source.Parse(from.Source).String(), "no image"))}
}

// describeImage describes the image of a disk to the machine. A container disk is in a folder of the
// container. The capacity of the volume limits the image of a disk without a size.
func describeImage(d *description.Disk, i diskImage, folder string, settings DiskSettings) {
	if i.Source.Kind == source.None {
		return
	}
	d.Image, d.Checksum = i.Source.Text(), i.Checksum
	if i.isContainerDisk() {
		d.Image = path.Join(folder, "disk")
	}
	if d.SizeBytes == 0 && settings.RoomBytes > 0 {
		d.MaxBytes = DiskIn(settings.RoomBytes)
	}
}

// TaggedImages returns the images of a spec that are named by tag and may be pulled.
func (t *Template) TaggedImages(spec driver.ServerSpec) []source.Source {
	images := []diskImage{t.rootImage(spec)}
	for _, v := range spec.Volumes {
		if v.Image != nil {
			images = append(images, parseImage(*v.Image))
		}
	}
	var all []source.Source
	for _, i := range images {
		if i.pullPolicy != driver.PullNever && i.isTagged() && !slices.Contains(all, i.Source) {
			all = append(all, i.Source)
		}
	}
	return all
}

// isTagged reports whether the image is a container disk that is not named by digest.
func (i diskImage) isTagged() bool {
	named, err := reference.ParseNormalizedNamed(i.Source.Name)
	if !i.isContainerDisk() || err != nil {
		return false
	}
	_, byDigest := named.(reference.Digested)
	return !byDigest
}

// FindResolved returns the result of resolving the tag of an image, nil if that was not tried.
func FindResolved(all []driver.ResolvedImage, from source.Source) *driver.ResolvedImage {
	n := slices.IndexFunc(all, func(i driver.ResolvedImage) bool { return i.Source == from.Text() })
	if n < 0 {
		return nil
	}
	return &all[n]
}

// imageReference returns the reference by which a pod names an image. It has the digest if the tag was
// resolved, so that all nodes use the same image.
func imageReference(from source.Source, resolved []driver.ResolvedImage) string {
	found := FindResolved(resolved, from)
	named, err := reference.ParseNormalizedNamed(from.Name)
	if found == nil || found.Digest == "" || err != nil {
		return from.Name
	}
	return reference.TrimNamed(named).Name() + "@" + found.Digest
}

// ImageDigest returns the digest of the image of a pod's root disk, as the kubelet reports it or as the
// pod names it. It returns "" if neither is known.
func ImageDigest(p *corev1.Pod) string {
	if s := MachineStatus(p); s != nil {
		for _, m := range s.VolumeMounts {
			if m.Name == imageVolume && m.VolumeStatus != nil && m.VolumeStatus.Image != nil {
				return digestOf(m.VolumeStatus.Image.ImageRef)
			}
		}
	}
	for _, v := range p.Spec.Volumes {
		if v.Name == imageVolume && v.Image != nil {
			return digestOf(v.Image.Reference)
		}
	}
	return ""
}

// DescribedVolumes returns the volumes that ImageDigest, IsEphemeral and SecretOf need.
func DescribedVolumes(all []corev1.Volume) (kept []corev1.Volume) {
	for _, v := range all {
		if v.Name == imageVolume || v.Name == diskVolume || v.Name == secretVolume {
			kept = append(kept, v)
		}
	}
	return kept
}

// RepositoryOf returns the repository of an image, such as registry.example/disks/debian.
func RepositoryOf(from source.Source) string {
	named, err := reference.ParseNormalizedNamed(from.Name)
	if err != nil {
		return ""
	}
	return named.Name()
}

// digestOf returns the digest in a reference of an image, "" if it has none.
func digestOf(image string) string {
	_, digest, _ := strings.Cut(image, "@")
	return digest
}
