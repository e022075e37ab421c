// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"net/url"
	"path"

	"github.com/distribution/reference"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image/source"
)

// CheckSpec rejects a spec that no pod can fulfil.
func (t *Template) CheckSpec(spec driver.ServerSpec) error {
	if len(spec.Name) > maxName {
		return driver.Errorf(driver.ErrInvalid, "metadata.name is %q, of %d characters: driver pod allows %d, because it is the value of a label", spec.Name, len(spec.Name), maxName)
	}
	if err := t.checkRootImage(spec); err != nil {
		return err
	}
	if err := checkVolumes(spec); err != nil {
		return err
	}
	return fields.CheckSupported(spec)
}

// checkRootImage rejects the image of a root disk, or its absence, if no pod can get it.
func (t *Template) checkRootImage(spec driver.ServerSpec) error {
	i := t.rootImage(spec)
	switch {
	case i.Source.Kind == source.None && !hasDefaultDisk(spec):
		return driver.Errorf(driver.ErrInvalid, "spec.image.source is missing: it must be %s, since no default is set with --pod-image", allowedSources)
	case i.Source.Kind == source.None:
		return nil
	}
	if err := checkImage("spec.image", i); err != nil {
		return err
	}
	return checkKernel(i)
}

// checkKernel rejects a kernel that is not in the image.
func checkKernel(i diskImage) error {
	switch {
	case i.kernel == nil:
		return nil
	case !i.isContainerDisk():
		return driver.Errorf(driver.ErrUnsupported, "spec.image.kernel: it is a file of a container disk, and spec.image.source is another image: leave it out, or use oci://REFERENCE")
	}
	for field, file := range map[string]string{"source": i.kernel.Source, "initrd": i.kernel.Initrd} {
		if file != "" && (!path.IsAbs(file) || path.Clean(file) != file) {
			return driver.Errorf(driver.ErrInvalid, "spec.image.kernel.%s is %.200q: it must be an absolute path in the image", field, file)
		}
	}
	return nil
}

// maxClaims is how many PVCs a status can have recorded, among 64 objects: the others are the pod,
// its Secret and the PodDisruptionBudget.
const maxClaims = 60

// countClaims returns how many PVCs the server has and has had, with those that are to be made.
func countClaims(spec driver.ServerSpec) int {
	names := map[string]bool{}
	for _, o := range spec.Objects {
		if o.Kind == KindClaim {
			names[o.Name] = true
		}
	}
	for _, of := range DisksOf(spec) {
		names[ClaimName(BaseName(spec.Name, spec.UID), of.Name)] = true
	}
	return len(names)
}

// checkVolumes rejects volumes that no pod can have. The run of a pod is recorded on its claim,
// and an ephemeral server does not have a claim that lasts.
func checkVolumes(spec driver.ServerSpec) error {
	if spec.Ephemeral && len(spec.Volumes) > 0 {
		return driver.Errorf(driver.ErrUnsupported, "spec.volumes: driver pod has none for an ephemeral server; leave them out, or ephemeral")
	}
	if count := countClaims(spec); count > maxClaims {
		return driver.Errorf(driver.ErrInvalid, "spec.volumes: with those that were removed from the list the VirtualMachine has %d disks, and can have %d: use their names again", count, maxClaims)
	}
	for _, v := range spec.Volumes {
		if v.Image == nil {
			continue
		}
		if err := checkImage(fmt.Sprintf("spec.volumes[%s].source.image", v.Name), parseImage(*v.Image)); err != nil {
			return err
		}
	}
	return nil
}

// allowedSources describes the allowed values of image.source.
const allowedSources = "oci://REFERENCE, a container disk, or http:// or https:// with a checksum"

// checkImage rejects an image that no pod can get. field is the path of the image in the spec.
func checkImage(field string, i diskImage) error {
	switch i.Source.Kind {
	case source.RegistryDisk:
		if _, err := reference.ParseAnyReference(i.Source.Name); err != nil {
			return driver.Errorf(driver.ErrInvalid, "%s.source is %.200q: it must be %s: %w", field, i.Source, allowedSources, err)
		}
	case source.Claim:
		return driver.Errorf(driver.ErrUnsupported, "%s.source is %.200q: driver pod copies no PersistentVolumeClaims; it must be %s", field, i.Source, allowedSources)
	case source.Catalogue:
		return driver.Errorf(driver.ErrUnsupported, "%s.source is %.200q: driver pod takes no names of cloud images; it must be %s", field, i.Source, allowedSources)
	case source.Web:
		if err := checkWebImage(field, i); err != nil {
			return err
		}
	default:
		return errNotAllowed(field, i)
	}
	if err := i.Validate(field); err != nil {
		return driver.Errorf(driver.ErrInvalid, "%w", err)
	}
	return nil
}

func errNotAllowed(field string, i diskImage) error {
	return driver.Errorf(driver.ErrInvalid, "%s.source is %.200q: it must be %s", field, i.Source, allowedSources)
}

// checkWebImage rejects an image of a web server that the machine cannot fetch, or that nothing verifies.
func checkWebImage(field string, i diskImage) error {
	parsed, err := url.Parse(i.Source.Name)
	switch {
	case err != nil || parsed.Host == "":
		return errNotAllowed(field, i)
	case i.Checksum == "":
		return driver.Errorf(driver.ErrInvalid, "%s.checksum is missing: an image from a web server needs one, sha256: and 64 digits", field)
	case i.pullPolicy == driver.PullNever:
		return driver.Errorf(driver.ErrUnsupported, "%s.pullPolicy is Never: the machine fetches an image from a web server when it makes the disk", field)
	}
	return nil
}

// hasDefaultDisk reports whether a server needs no image, because it starts from a blank disk with a size.
func hasDefaultDisk(spec driver.ServerSpec) bool {
	return spec.RootDiskBytes > 0 && !spec.Ephemeral && spec.Image.Kernel == nil
}
