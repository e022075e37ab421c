// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package folder reads and cleans up a folder of the qemu driver, for command line tools that do
// not start machines there. Controllers may run at the same time.
//
// Start with Open. folder.go has the fetched images and the free space that disks may still take,
// servers.go has the machines.
package folder

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine/launch"
)

// ImagesDir is the name of the folder of fetched images in the driver's folder.
const ImagesDir = "cache"

// Folder is a folder of the driver.
type Folder struct {
	dir    *statedir.Dir
	host   *instance.Host
	images *image.Store
}

// Image is a fetched image and its users.
type Image struct {
	image.StoredImage
	// UsedBy are the machines whose disks are based on the image, as namespace/name, including
	// released machines and machines of other clusters.
	UsedBy []string
}

// Open opens an existing folder of the driver. It creates nothing in the folder, since the caller
// may be another user than the user who runs machines.
func Open(path string, c clock.WithTicker) (*Folder, error) {
	dir, err := statedir.OpenExisting("the qemu driver's folder", path)
	if err != nil {
		return nil, fmt.Errorf("%s is not a folder of the qemu driver: %w", path, err)
	}
	return &Folder{
		dir:    dir,
		host:   instance.NewHost(instance.Options{Users: &launch.Users{}, Clock: c, Log: logr.Discard()}, dir),
		images: &image.Store{Dir: dir.Path(), Sub: ImagesDir, Clock: c},
	}, nil
}

// Machines returns the directories of all machines, of every cluster.
func (f *Folder) Machines() ([]string, error) {
	instances, err := f.host.AllInstances()
	paths := make([]string, 0, len(instances))
	for _, h := range instances {
		paths = append(paths, h.Machine.Path)
	}
	return paths, err
}

// Images returns the images that were fetched into the folder, and their users.
func (f *Folder) Images() ([]Image, error) {
	images, err := f.images.List()
	if err != nil {
		return nil, err
	}
	users, err := f.usersByName()
	if err != nil {
		return nil, err
	}
	all := make([]Image, 0, len(images))
	for _, i := range images {
		all = append(all, Image{i, users[i.Name]})
	}
	return all, nil
}

// PruneImages removes the images that no machine uses, and returns them.
func (f *Folder) PruneImages(ctx context.Context) ([]image.StoredImage, error) {
	return f.images.Prune(ctx, func() (map[string]bool, error) {
		users, err := f.usersByName()
		used := make(map[string]bool, len(users))
		for name := range users {
			used[name] = true
		}
		return used, err
	})
}

// usersByName returns the users of images by the name of the image's file, not by its path, since
// the folder may have been moved. It fails if a server cannot be read, since that server may use
// any image.
func (f *Folder) usersByName() (map[string][]string, error) {
	instances, err := f.host.AllInstances()
	if err != nil {
		return nil, err
	}
	users := map[string][]string{}
	for _, h := range instances {
		r, err := h.Load()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, name := range r.BaseImageNames() {
			users[name] = append(users[name], r.Namespace+"/"+r.Name)
		}
	}
	return users, nil
}

// PromisedDisk returns how many bytes the disks of all machines may still take.
func (f *Folder) PromisedDisk() (int64, error) { return PromisedDisk(f.host) }

// PromisedDisk returns how many bytes the disks of all clusters' machines may still take. It
// skips servers that cannot be read.
func PromisedDisk(h *instance.Host) (int64, error) {
	instances, err := h.AllInstances()
	if err != nil {
		return 0, err
	}
	var promised int64
	for _, inst := range instances {
		r, err := inst.Load()
		if err != nil {
			continue
		}
		promised += max(0, r.Root.Size-allocatedBytes(inst.Machine.File(instance.RootDiskFile)))
		for name, v := range r.Volumes {
			promised += max(0, v.Size-allocatedBytes(inst.Machine.File(instance.VolumeFile(name))))
		}
	}
	return promised, nil
}

// allocatedBytes returns how many bytes a file takes on its disk.
func allocatedBytes(path string) int64 {
	var stat syscall.Stat_t
	if err := syscall.Stat(path, &stat); err != nil {
		return 0
	}
	const block = 512 // the unit of st_blocks, whatever the block size of the file system
	return stat.Blocks * block
}
