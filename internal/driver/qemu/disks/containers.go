// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package disks

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/guest/datadisk"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskimage"
)

// FormatRoot is the format of a container image's file system, which a disk is beside, not on top of.
const FormatRoot = "erofs"

// defaultContainerDisk is the size of the disk of a container image where the spec names none. It takes room only as
// it is written to.
const defaultContainerDisk = 10 << 30

// IsContainer reports whether the image is a container image, whose files the guest sees below its disk.
func (i BaseImage) IsContainer() bool { return i.Format == FormatRoot }

// OpenRoot opens the file system of a container image that a disk was made for.
func (d *Store) OpenRoot(was BaseImage) (*image.Root, error) {
	root, err := d.images.OpenRoot(was.FetchedRef(""))
	return root, ContractError(err)
}

// describeRoot describes a container image that is on this host. It returns image.ErrNotRoot for one that is a disk.
func (d *Store) describeRoot(requested ImageSettings) (BaseImage, error) {
	root, err := d.images.OpenRoot(requested.Ref())
	if err != nil {
		return BaseImage{}, ContractError(err)
	}
	return BaseImage{requested, image.Base{Path: root.Name, Format: FormatRoot}}, root.Close()
}

// makeForContainer makes the disk of a container image's machine.
func (d *Store) makeForContainer(path string, o Order, root BaseImage) (Disk, error) {
	made := Disk{Size: o.Size, Image: root, Template: "data-" + datadisk.Name()}
	switch {
	case made.Size == 0:
		made.Size = defaultContainerDisk
	case made.Size < datadisk.MinBytes:
		return made, driver.Errorf(driver.ErrInvalid, "spec.%s is %s: the disk of a container image needs %s", o.SizeField, kit.FormatBytes(o.Size), kit.FormatBytes(datadisk.MinBytes))
	}
	if err := d.CheckSize(o.SizeField, made.Size); err != nil {
		return made, err
	}
	template, err := d.makeTemplate(made.Template)
	if err != nil {
		return made, err
	}
	return made, diskimage.CreateQcow2(path, made.Size, &diskimage.Backing{Path: template, Format: formatRaw})
}

const formatRaw = "raw"

// makeTemplate makes the file that the disks of container images stand on, if it is missing. It is never changed.
func (d *Store) makeTemplate(name string) (path string, err error) {
	path = d.images.File(name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	staging, remove, err := d.images.Stage()
	if err != nil {
		return "", err
	}
	defer remove()
	f, err := os.OpenFile(filepath.Join(staging, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400) //nolint:gosec // in the staging folder
	if err != nil {
		return "", err
	}
	err = errors.Join(datadisk.Write(f, datadisk.MinBytes), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", err
	}
	return path, d.images.Engine.Sync(filepath.Dir(path))
}

// openTemplate opens the file that a disk stands on.
func (d *Store) openTemplate(name string) (*os.File, error) {
	f, err := diskimage.OpenRegular(d.images.File(filepath.Base(name)), true)
	if err != nil {
		return nil, unavailableError("the file system that disks of container images begin with: %w", err)
	}
	return f, nil
}
