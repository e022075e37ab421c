// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package disks

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/guest/datadisk"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskimage"
)

// defaultContainerDisk is the size in bytes of a container image's disk if the spec names no size. The disk is sparse: it
// uses space on the host only as the guest writes.
const defaultContainerDisk = 10 << 30

// OpenRoot opens the root file system of the container image for which a disk was made.
func (d *Store) OpenRoot(recorded image.Base) (*image.Root, error) {
	root, err := d.images.OpenRoot(recorded.FetchedRef())
	return root, ContractError(err)
}

// makeForContainer creates the writable disk of a machine that boots a container image.
func (d *Store) makeForContainer(path string, wanted Wanted, root image.Base) (Disk, error) {
	if wanted.Size == 0 {
		wanted.Size = defaultContainerDisk
	}
	if err := d.CheckSize(wanted.SizeField, wanted.Size); err != nil {
		return Disk{}, err
	}
	made, err := d.makeWithFileSystem(path, wanted)
	made.Image = root
	return made, err
}

// makeWithFileSystem creates a disk with an empty file system, which the guest makes as large as the disk.
func (d *Store) makeWithFileSystem(path string, wanted Wanted) (Disk, error) {
	made := Disk{Size: wanted.Size, Template: templateName()}
	if made.Size < datadisk.MinBytes || made.Size > datadisk.MaxBytes {
		return made, driver.Errorf(driver.ErrInvalid, "spec.%s is %s: a disk with a file system needs %s, and may have %s", wanted.SizeField, kit.FormatBytes(wanted.Size), kit.FormatBytes(datadisk.MinBytes), kit.FormatBytes(datadisk.MaxBytes))
	}
	template, err := d.makeTemplate()
	if err != nil {
		return made, err
	}
	return made, diskimage.CreateQcow2(path, made.Size, &diskimage.Backing{Path: template, Format: formatRaw})
}

const formatRaw = "raw"

// templateName returns the name of the template: an empty file system on which new disks of container images are based.
func templateName() string { return image.TemplatePrefix + datadisk.Name() }

// templateBase returns the base image of disks that use the template called name. Another version of Drover may have made
// this template.
func templateBase(name string) image.Base {
	return image.Base{Path: name, Format: formatRaw, Size: datadisk.MinBytes, Stamp: strconv.Itoa(datadisk.MinBytes)}
}

// maxTemplateBytes is the most space that the template can use on the host's disk.
const maxTemplateBytes = 1 << 20

// makeTemplate makes the template if it is missing. A template is never changed.
func (d *Store) makeTemplate() (path string, err error) {
	name := templateName()
	path = d.images.File(name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	release, err := d.images.Space.Allocate(maxTemplateBytes)
	if err != nil {
		return "", driver.Errorf(driver.ErrExhausted, "creating the base file system for the disks of container images: %w", err)
	}
	defer release()
	staging, remove, err := d.images.Stage()
	if err != nil {
		return "", err
	}
	defer remove()
	f, err := os.OpenFile(filepath.Join(staging, name), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o400) //nolint:gosec // in the staging folder
	if err != nil {
		return "", err
	}
	if err := errors.Join(datadisk.Write(f, datadisk.MinBytes), f.Close()); err != nil {
		return "", err
	}
	return path, d.images.AddFile(f.Name(), name)
}

// openTemplate opens the template that a disk is based on.
func (d *Store) openTemplate(name string) (*os.File, error) {
	f, err := diskimage.OpenRegular(d.images.File(filepath.Base(name)), true)
	if err != nil {
		return nil, unavailableError("the base file system of a container image's disk: %w", err)
	}
	return f, nil
}
