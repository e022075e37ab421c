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

// defaultContainerDisk is the size of the disk of a container image where the spec names none. It takes room only as
// it is written to.
const defaultContainerDisk = 10 << 30

// OpenRoot opens the file system of a container image that a disk was made for.
func (d *Store) OpenRoot(was image.Base) (*image.Root, error) {
	root, err := d.images.OpenRoot(was.FetchedRef())
	return root, ContractError(err)
}

// makeForContainer makes the disk of a container image's machine.
func (d *Store) makeForContainer(path string, wanted Wanted, root image.Base) (Disk, error) {
	made := Disk{Size: wanted.Size, Image: root, Template: templateName()}
	switch {
	case made.Size == 0:
		made.Size = defaultContainerDisk
	case made.Size < datadisk.MinBytes:
		return made, driver.Errorf(driver.ErrInvalid, "spec.%s is %s: the disk of a container image needs %s", wanted.SizeField, kit.FormatBytes(wanted.Size), kit.FormatBytes(datadisk.MinBytes))
	}
	if err := d.CheckSize(wanted.SizeField, made.Size); err != nil {
		return made, err
	}
	template, err := d.makeTemplate()
	if err != nil {
		return made, err
	}
	return made, diskimage.CreateQcow2(path, made.Size, &diskimage.Backing{Path: template, Format: formatRaw})
}

const formatRaw = "raw"

// templateName returns the name of the file that new disks of container images stand on.
func templateName() string { return image.TemplatePrefix + datadisk.Name() }

// templateBase describes a file that disks of container images stand on.
func templateBase(name string) image.Base {
	return image.Base{Path: name, Format: formatRaw, Size: datadisk.MinBytes, Stamp: strconv.Itoa(datadisk.MinBytes)}
}

// templateRoom is more than the file takes on the host's disk.
const templateRoom = 1 << 20

// makeTemplate makes that file if it is missing. It is never changed.
func (d *Store) makeTemplate() (path string, err error) {
	name := templateName()
	path = d.images.File(name)
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return path, err
	}
	release, err := d.images.Room.Take(templateRoom)
	if err != nil {
		return "", driver.Errorf(driver.ErrExhausted, "making the file system that disks of container images begin with: %w", err)
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

// openTemplate opens the file that a disk stands on.
func (d *Store) openTemplate(name string) (*os.File, error) {
	f, err := diskimage.OpenRegular(d.images.File(filepath.Base(name)), true)
	if err != nil {
		return nil, unavailableError("the file system that disks of container images begin with: %w", err)
	}
	return f, nil
}
