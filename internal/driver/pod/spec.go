// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
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
	switch {
	case image == "" && !hasDefaultDisk(spec):
		return driver.Errorf(driver.ErrInvalid, "spec.image.source is missing: it must be %sREFERENCE, a container disk, since no default is set with --pod-image", imageScheme)
	case image != "" && !strings.HasPrefix(image, imageScheme):
		return driver.Errorf(driver.ErrInvalid, "spec.image.source is %.200q: it must be %sREFERENCE, a container disk", image, imageScheme)
	}
	if _, err := reference.ParseAnyReference(strings.TrimPrefix(image, imageScheme)); image != "" && err != nil {
		return driver.Errorf(driver.ErrInvalid, "spec.image.source is %.200q: %w", image, err)
	}
	if kernel != nil {
		for field, file := range map[string]string{"source": kernel.Source, "initrd": kernel.Initrd} {
			if file != "" && (!path.IsAbs(file) || path.Clean(file) != file) {
				return driver.Errorf(driver.ErrInvalid, "spec.image.kernel.%s is %.200q: it must be an absolute path in the image", field, file)
			}
		}
	}
	return fields.CheckSupported(spec)
}

// hasDefaultDisk reports whether a server needs no image: its blank disk has a size.
func hasDefaultDisk(spec driver.ServerSpec) bool {
	return spec.RootDiskBytes > 0 && !spec.Ephemeral && spec.Image.Kernel == nil
}

// imageSource returns the image of the spec, or the default.
func (d *Driver) imageSource(spec driver.ServerSpec) string {
	return cmp.Or(spec.Image.Source, d.Image)
}
