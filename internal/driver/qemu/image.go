// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
)

// imageOf returns the image that a spec requests, or else the present one: a change of
// the default affects no server.
func imageOf(spec driver.ServerSpec, have disks.ImageSettings) disks.ImageSettings {
	if spec.Image.Source == "" {
		return have
	}
	return disks.ImageSettings{Source: spec.Image.Source, Checksum: spec.Image.Checksum}
}

// imageOf returns the image that a spec requests, or the one that the root disk
// stands on.
func (inst *instance) imageOf(spec driver.ServerSpec) disks.ImageSettings {
	return imageOf(spec, inst.Root.Image.ImageSettings)
}

// checkImages checks that everything the next run is made of is available, and makes
// nothing.
func (d *Driver) checkImages(s *instance, spec driver.ServerSpec) error {
	if err := d.disks.CheckKernel(spec); err != nil {
		return err
	}
	if err := d.checkRoot(s, spec); err != nil {
		return err
	}
	for i, v := range spec.Volumes {
		have, made := s.Volumes[v.Name]
		err := d.disks.CheckImage(volumeField(i), have)
		if !made && v.Image != nil {
			_, err = d.disks.FindImage(volumeOrder(i, v))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *Driver) checkRoot(s *instance, spec driver.ServerSpec) error {
	requested := s.imageOf(spec)
	switch {
	case !s.needsRoot(spec):
		return d.disks.CheckImage(rootField, s.Root)
	case requested.Source == "" && spec.Image.Kernel != nil:
		return nil
	}
	_, err := d.disks.FindImage(rootOrder(spec, requested))
	return err
}
