// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package disks

import (
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
)

// CheckCloud rejects a new disk whose cloud image is not in the catalogue or needs a larger disk. It
// does so before the image is fetched.
func (d *Store) CheckCloud(wanted Wanted) error {
	found, err := d.images.Sources.FindCloud(wanted.Image.Source)
	switch {
	case err != nil:
		return driver.Errorf(driver.ErrInvalid, "spec.%s.source is %.200q: %w", wanted.ImageField, wanted.Image.Source, err)
	case found != nil && wanted.Size != 0 && wanted.Size < found.MinDiskBytes():
		return driver.Errorf(driver.ErrInvalid, "spec.%s is %s: the image %s needs %s", wanted.SizeField, kit.FormatBytes(wanted.Size), wanted.Image.Source, kit.FormatBytes(found.MinDiskBytes()))
	}
	return nil
}
