// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package disks makes the disks of machines, on top of images that the operator allows, and
// opens them for QEMU. Its errors have the kinds of package driver.
//
// Start with Store.Make. disks.go makes and opens disks, images.go finds the images that disks
// are based on, and fetch.go fetches images in the background.
package disks

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/launch"
)

// Store makes and opens the disks of machines, from the images that the operator allows.
type Store struct {
	images    *ImageStore
	imageDirs []string
	// FindCapacity returns the size of the file system of the disks.
	FindCapacity func() (Capacity, error)
}

// NewStore returns a store of disks in a folder. Their images are files below imageDirs, or
// fetched images.
func NewStore(folder string, images *ImageStore, imageDirs []string) *Store {
	return &Store{
		images: images, imageDirs: imageDirs,
		FindCapacity: func() (Capacity, error) { return readCapacity(folder) },
	}
}

// Disk is a disk that was made, and the image that it is based on.
type Disk struct {
	Size  int64      `json:"size"`
	Image image.Base `json:"image"`
	// Template is set for a disk with a file system that Drover has made: of a container image, or a volume that is mounted.
	// This file of the store, not the image, is the disk's base.
	Template string `json:"template,omitempty"`
}

// Wanted describes a disk that has to be made, and names the fields of its image and size in the spec.
type Wanted struct {
	ImageField, SizeField string
	Image                 image.Ref
	Size                  int64
	// HasFileSystem is set if a disk without an image gets an empty file system.
	HasFileSystem bool
}

// Make makes a disk on top of an image, or a blank disk without an image. A size of zero
// means the size of the image.
func (d *Store) Make(path string, wanted Wanted) (Disk, error) {
	if wanted.Image.Source.Kind == source.None {
		if wanted.HasFileSystem {
			return d.makeWithFileSystem(path, wanted)
		}
		return Disk{Size: wanted.Size}, diskimage.CreateQcow2(path, wanted.Size, nil)
	}
	i, err := d.FindImage(wanted)
	if err != nil {
		return Disk{}, err
	}
	if i.IsContainer() {
		return d.makeForContainer(path, wanted, i)
	}
	size := max(wanted.Size, i.Size)
	if err := d.CheckSize(wanted.SizeField, size); err != nil {
		return Disk{}, err
	}
	return Disk{Size: size, Image: i}, diskimage.CreateQcow2(path, size, &diskimage.Backing{Path: d.pathOf(i), Format: i.Format})
}

// SizeOf returns the size of the disk that Make would make. As long as the image is missing, it is the wanted size.
func (d *Store) SizeOf(wanted Wanted) int64 {
	if wanted.Image.Source.Kind == source.None {
		return wanted.Size
	}
	i, err := d.FindImage(wanted)
	switch {
	case err != nil:
		return wanted.Size
	case i.IsContainer():
		return cmp.Or(wanted.Size, defaultContainerDisk)
	}
	return max(wanted.Size, i.Size)
}

// FindImage returns the image of a disk, and checks that the disk is at least as large.
func (d *Store) FindImage(wanted Wanted) (image.Base, error) {
	i, err := d.describeImage(wanted.ImageField, wanted.Image)
	if err == nil && wanted.Size != 0 && wanted.Size < i.Size && !i.IsContainer() {
		err = driver.Errorf(driver.ErrInvalid, "spec.%s is %s: the image %s needs %s", wanted.SizeField, kit.FormatBytes(wanted.Size), i.Source, kit.FormatBytes(i.Size))
	}
	return i, err
}

// pathOf returns the present path of an image.
func (d *Store) pathOf(i image.Base) string {
	if !i.Source.IsFetched() {
		return i.Path
	}
	path, _ := d.images.Path(i.FetchedRef())
	return path
}

// Keep links the files that a disk is based on into the machine's folder. If the store lacks such a file, Keep links it
// back from that folder, because a file that is fetched or made again may have other content.
func (d *Store) Keep(folder string, disk Disk) error {
	if disk.Template == templateName() { // only the template of this version of Drover can be made
		if _, err := d.makeTemplate(); err != nil {
			return err
		}
	}
	for _, b := range disk.baseImages() {
		if err := d.images.Keep(folder, b); err != nil {
			return fmt.Errorf("keeping %s, which a disk is based on: %w", b.Path, err)
		}
	}
	return nil
}

// KeepOnly calls Keep for all disks of a machine, and removes the files of earlier disks from the machine's folder.
func (d *Store) KeepOnly(folder string, disks ...Disk) error {
	needed := map[string]bool{}
	for _, disk := range disks {
		if err := d.Keep(folder, disk); err != nil {
			return err
		}
		for _, b := range disk.baseImages() {
			needed[b.Path] = true
		}
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if image.IsStored(entry.Name()) && !needed[entry.Name()] {
			if err := os.Remove(filepath.Join(folder, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// baseImages returns the files of the store that a disk is based on.
func (d Disk) baseImages() []image.Base {
	var all []image.Base
	if d.Template != "" {
		all = append(all, templateBase(filepath.Base(d.Template)))
	}
	if d.Image.Path != "" && d.Image.Source.IsFetched() {
		all = append(all, d.Image)
	}
	return all
}

// Open opens a disk and the image that it is based on, and checks the opened files. QEMU gets
// their descriptors, not their paths. The field of the image is for errors.
func (d *Store) Open(files *launch.Files, field, path string, disk Disk, readOnly bool) (*launch.Drive, error) {
	f, err := diskimage.OpenDisk(path, readOnly)
	if err != nil {
		return nil, unavailableError("disk %s: %w", path, err)
	}
	opened := &launch.Drive{FD: files.Add(f), ReadOnly: readOnly}
	if disk.Image.Path == "" && disk.Template == "" {
		return opened, nil
	}
	format := disk.Image.Format
	var base *os.File
	if disk.Template != "" {
		format = formatRaw
		base, err = d.openTemplate(disk.Template)
	} else {
		base, err = d.openBase(field, disk.Image)
	}
	if err != nil {
		return nil, err
	}
	opened.Backing = &launch.Layer{FD: files.Add(base), Format: format}
	return opened, nil
}

// CheckUnwritten returns an error if a disk has data or cannot be read.
func CheckUnwritten(path string) error {
	f, err := diskimage.OpenDisk(path, true)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err == nil && !diskimage.IsUnwritten(f, info.Size()) {
		err = errors.New("it holds data")
	}
	return err
}

// maxOvercommit limits the size of one disk, as a multiple of the size of the host's file system.
// Disks use only the space of the data that was written to them, so that all disks together may be
// larger than the host's. But a guest relies on the size of its disk.
const maxOvercommit = 10

// Capacity is the size of the file system of the machines' disks, and its free space, in bytes.
type Capacity struct{ Total, Available int64 }

// readCapacity returns the capacity of a folder's file system.
func readCapacity(folder string) (Capacity, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return Capacity{}, os.NewSyscallError("statfs", err)
	}
	return Capacity{int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize}, nil //nolint:gosec // of a file system
}

// CheckSize rejects a disk of more than maxOvercommit times the size of the host's file system. It
// allows any disk if that size is unknown.
func (d *Store) CheckSize(field string, size int64) error {
	capacity, err := d.FindCapacity()
	if err != nil || size/maxOvercommit <= capacity.Total {
		return nil //nolint:nilerr // an unknown size allows any disk
	}
	return driver.Errorf(driver.ErrExhausted, "spec.%s: needed %s, and the host's file system holds %s: a disk may have at most %d times that", field, kit.FormatBytes(size), kit.FormatMegabytes(capacity.Total), maxOvercommit)
}
