// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"cmp"
	"fmt"
	"path"
	"strings"

	"github.com/distribution/reference"

	"cloudnative.tw/drover/internal/driver"
)

const imageScheme = "oci://"

// CheckSpec rejects a spec that no pod can have.
func (t *Template) CheckSpec(spec driver.ServerSpec) error {
	if len(spec.Name) > maxName {
		return driver.Errorf(driver.ErrInvalid, "metadata.name is %q, of %d characters: driver pod allows %d, because it is the value of a label", spec.Name, len(spec.Name), maxName)
	}
	image := t.imageSource(spec)
	kernel := spec.Image.Kernel
	if image == "" && !hasDefaultDisk(spec) {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source is missing: it must be %sREFERENCE, a container disk, since no default is set with --pod-image", imageScheme)
	}
	if err := checkImage("spec.image.source", image); image != "" && err != nil {
		return err
	}
	if kernel != nil {
		for field, file := range map[string]string{"source": kernel.Source, "initrd": kernel.Initrd} {
			if file != "" && (!path.IsAbs(file) || path.Clean(file) != file) {
				return driver.Errorf(driver.ErrInvalid, "spec.image.kernel.%s is %.200q: it must be an absolute path in the image", field, file)
			}
		}
	}
	if err := checkVolumes(spec); err != nil {
		return err
	}
	return fields.CheckSupported(spec)
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

// checkVolumes rejects volumes that no pod can have. A claim is what has recorded the run of a pod,
// and an ephemeral server has none that lasts.
func checkVolumes(spec driver.ServerSpec) error {
	if spec.Ephemeral && len(spec.Volumes) > 0 {
		return driver.Errorf(driver.ErrUnsupported, "spec.volumes: driver pod has none for an ephemeral server; leave them out, or ephemeral")
	}
	if count := countClaims(spec); count > maxClaims {
		return driver.Errorf(driver.ErrInvalid, "spec.volumes: with those that were removed from the list the VirtualMachine has %d disks, and can have %d: delete it, or use their names again", count, maxClaims)
	}
	for _, v := range spec.Volumes {
		if v.Image == nil {
			continue
		}
		if err := checkImage(fmt.Sprintf("spec.volumes[%s].source.image.source", v.Name), v.Image.Source); err != nil {
			return err
		}
	}
	return nil
}

// checkImage rejects what is no container disk.
func checkImage(field, image string) error {
	name, ok := strings.CutPrefix(image, imageScheme)
	if !ok {
		return driver.Errorf(driver.ErrInvalid, "%s is %.200q: it must be %sREFERENCE, a container disk", field, image, imageScheme)
	}
	if _, err := reference.ParseAnyReference(name); err != nil {
		return driver.Errorf(driver.ErrInvalid, "%s is %.200q: it must be %sREFERENCE, a container disk: %w", field, image, imageScheme, err)
	}
	return nil
}

// hasDefaultDisk reports whether a server needs no image: its blank disk has a size.
func hasDefaultDisk(spec driver.ServerSpec) bool {
	return spec.RootDiskBytes > 0 && !spec.Ephemeral && spec.Image.Kernel == nil
}

// imageSource returns the image of the spec, or the default.
func (t *Template) imageSource(spec driver.ServerSpec) string {
	return cmp.Or(spec.Image.Source, t.Image)
}
