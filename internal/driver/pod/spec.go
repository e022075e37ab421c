// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/distribution/reference"
	corev1 "k8s.io/api/core/v1"

	"cloudnative.tw/drover/internal/driver"
)

const imageScheme = "oci://"

var accessModes = []string{string(corev1.ReadWriteOncePod), string(corev1.ReadWriteOnce), string(corev1.ReadWriteMany)}

func isAccessMode(mode string) bool { return slices.Contains(accessModes, mode) }

// checkArguments rejects arguments that are invalid for any server.
func checkArguments(spec driver.ServerSpec) error {
	if err := driver.CheckUID(spec.UID); err != nil {
		return err
	}
	return driver.CheckPower(spec.Power)
}

// checkSpec rejects a spec that no pod can have.
func (d *Driver) checkSpec(spec driver.ServerSpec) error {
	image := d.imageSource(spec)
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

// maxRecorded is how many objects a status can have recorded.
const maxRecorded = 64

// checkVolumes rejects volumes that no pod can have. A claim is what has recorded the run of a pod,
// and an ephemeral server has none that lasts.
func checkVolumes(spec driver.ServerSpec) error {
	if spec.Ephemeral && len(spec.Volumes) > 0 {
		return driver.Errorf(driver.ErrUnsupported, "spec.volumes: driver pod has none for an ephemeral server; leave them out, or ephemeral")
	}
	if len(spec.Objects)+len(spec.Volumes) >= maxRecorded {
		return driver.Errorf(driver.ErrInvalid, "spec.volumes: the VirtualMachine has had %d objects, with the volumes that were removed from the list, and can have %d: delete it, or use their names again", len(spec.Objects), maxRecorded)
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
		return driver.Errorf(driver.ErrInvalid, "%s is %.200q: %w", field, image, err)
	}
	return nil
}

// hasDefaultDisk reports whether a server needs no image: its blank disk has a size.
func hasDefaultDisk(spec driver.ServerSpec) bool {
	return spec.RootDiskBytes > 0 && !spec.Ephemeral && spec.Image.Kernel == nil
}

// imageSource returns the image of the spec, or the default.
func (d *Driver) imageSource(spec driver.ServerSpec) string {
	return cmp.Or(spec.Image.Source, d.Image)
}
