// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package disks makes the disks of machines, on top of images that the operator allows, and
// opens them for QEMU. It returns errors of the driver contract.
//
// Start with Store.Make. disks.go makes and opens disks, images.go finds the images that
// they stand on, and fetch.go fetches images in the background.
package disks

import (
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
	// FindCapacity finds what the file system of the disks holds.
	FindCapacity func() (Capacity, error)
}

// NewStore returns a store of disks in a folder, which takes images from the given
// folders and from those that were fetched.
func NewStore(folder string, images *ImageStore, imageDirs []string) *Store {
	return &Store{
		images: images, imageDirs: imageDirs,
		FindCapacity: func() (Capacity, error) { return readCapacity(folder) },
	}
}

// Disk is a disk that was made, and the image that it stands on.
type Disk struct {
	Size  int64      `json:"size"`
	Image image.Base `json:"image"`
	// Template is the file in the store that the disk of a container image stands on, in place of its image.
	Template string `json:"template,omitempty"`
}

// Wanted describes a disk that is to be made, and the fields of the spec that say so.
type Wanted struct {
	ImageField, SizeField string
	Image                 image.Ref
	Size                  int64
}

// Make makes a disk on top of an image, or a blank one where none is named. Without a
// size it has the image's.
func (d *Store) Make(path string, wanted Wanted) (Disk, error) {
	if wanted.Image.Source.Kind == source.None {
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

// FindImage returns the image of a disk. The disk must be at least as large as its image.
func (d *Store) FindImage(wanted Wanted) (image.Base, error) {
	i, err := d.describeImage(wanted.ImageField, wanted.Image)
	if err == nil && wanted.Size != 0 && wanted.Size < i.Size && !i.IsContainer() {
		err = driver.Errorf(driver.ErrInvalid, "spec.%s is %s: the image %s needs %s", wanted.SizeField, kit.FormatBytes(wanted.Size), i.Source, kit.FormatBytes(i.Size))
	}
	return i, err
}

// pathOf returns where an image is now.
func (d *Store) pathOf(i image.Base) string {
	if !i.Source.IsFetched() {
		return i.Path
	}
	path, _ := d.images.Path(i.FetchedRef())
	return path
}

// Keep keeps the files on which a disk is based in the machine's folder, and gives them back to a store that was emptied:
// a file that could be fetched or made now may be of a later version.
func (d *Store) Keep(folder string, have Disk) error {
	if have.Template == templateName() {
		if _, err := d.makeTemplate(); err != nil {
			return err
		}
	}
	for _, b := range have.baseImages() {
		if err := d.images.Keep(folder, b); err != nil {
			return fmt.Errorf("keeping %s, which a disk stands on: %w", b.Path, err)
		}
	}
	return nil
}

// KeepOnly keeps the files on which the disks of a machine are based, and removes those of earlier disks from its folder.
func (d *Store) KeepOnly(folder string, have ...Disk) error {
	needed := map[string]bool{}
	for _, disk := range have {
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

// baseImages returns the files of the store on which a disk is based.
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

// Open opens a disk, and the image below it that the field names, and checks them
// as they are opened: QEMU gets these descriptors, and no path.
func (d *Store) Open(files *launch.Files, field, path string, have Disk, readOnly bool) (*launch.Drive, error) {
	own, err := diskimage.OpenDisk(path, readOnly)
	if err != nil {
		return nil, unavailableError("disk %s: %w", path, err)
	}
	opened := &launch.Drive{FD: files.Add(own), ReadOnly: readOnly}
	if have.Image.Path == "" {
		return opened, nil
	}
	format := have.Image.Format
	var base *os.File
	if have.Image.IsContainer() {
		format = formatRaw
		base, err = d.openTemplate(have.Template)
	} else {
		base, err = d.openBase(field, have.Image)
	}
	if err != nil {
		return nil, err
	}
	opened.Backing = &launch.Layer{FD: files.Add(base), Format: format}
	return opened, nil
}

// CheckUnwritten fails if a disk cannot be read, or holds data.
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

// maxOvercommit is how many times the size of the host's file system one disk may have.
// Disks take only the room of the data that was written to them, so their sum may exceed the
// host, but a guest relies on its disk's size.
const maxOvercommit = 10

// Capacity is the size of the file system of the machines' disks, and how much is free.
type Capacity struct{ Total, Available int64 }

// readCapacity returns the capacity that disks grow into.
func readCapacity(folder string) (Capacity, error) {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(folder, &fs); err != nil {
		return Capacity{}, os.NewSyscallError("statfs", err)
	}
	return Capacity{int64(fs.Blocks) * fs.Bsize, int64(fs.Bavail) * fs.Bsize}, nil //nolint:gosec // of a file system
}

// CheckSize refuses a disk far beyond what the host can hold. If the host's capacity is
// unknown, it allows the disk.
func (d *Store) CheckSize(field string, size int64) error {
	holds, err := d.FindCapacity()
	if err != nil || size/maxOvercommit <= holds.Total {
		return nil //nolint:nilerr // as said
	}
	return driver.Errorf(driver.ErrExhausted, "spec.%s: needed %s, and the host's file system holds %s: a disk may have at most %d times that", field, kit.FormatBytes(size), kit.FormatMegabytes(holds.Total), maxOvercommit)
}
