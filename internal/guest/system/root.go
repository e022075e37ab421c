// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
)

// resizeFS is EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64).
const resizeFS = 0x40086610

// Root is the file system that the program sees.
type Root struct {
	// data is a descriptor of the writable file system below the overlay. After SwitchRoot nothing else leads there.
	data int
	// disks are descriptors of the file systems that are on disks.
	disks []int
}

// MountRoot mounts the image's disk and, above it, the disk to which the machine writes. warn gets errors
// that are not a reason to stop.
func MountRoot(disks config.Disks, warn func(error)) (*Root, error) {
	device, err := FindDisk(disks.Root)
	if err != nil {
		return nil, err
	}
	if err := mountDevice(device, imageDir, "erofs", unix.MS_RDONLY, ""); err != nil {
		return nil, fmt.Errorf("the image's disk: %w", err)
	}
	root := &Root{}
	if disks.Data == "" {
		err = (mount{"tmpfs", dataDir, 0, "mode=0755"}).mount()
	} else {
		err = mountData(disks.Data, warn)
	}
	if err != nil {
		return nil, err
	}
	if root.data, err = unix.Open(dataDir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, err
	}
	if disks.Data != "" {
		root.disks = append(root.disks, root.data)
	}
	return root, mountOverlay()
}

func mountDevice(device, target, kind string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil { //nolint:gosec // as in every root
		return err
	}
	if err := unix.Mount(device, target, kind, flags, options); err != nil {
		return fmt.Errorf("mount %s as %s: %w", device, kind, err)
	}
	return nil
}

// mountData mounts the data disk and makes its file system as large as the disk. What lies beyond
// the template reads as zeros, so the kernel need not write inode tables (noinit_itable).
func mountData(serial string, warn func(error)) error {
	device, err := FindDisk(serial)
	if err != nil {
		return err
	}
	if err := mountDevice(device, dataDir, "ext4", 0, "errors=remount-ro,noinit_itable,discard"); err != nil {
		return fmt.Errorf("the data disk: %w", err)
	}
	folder, err := os.Open(dataDir)
	if err != nil {
		return err
	}
	defer func() { _ = folder.Close() }()
	if err := grow(int(folder.Fd()), device); err != nil {
		warn(fmt.Errorf("the data disk keeps its size: %w", err))
	}
	return nil
}

// grow makes a mounted file system as large as its device. It is always tried: free blocks do not
// tell whether that is needed.
func grow(fd int, device string) error {
	disk, err := unix.Open(device, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(disk) }()
	var size uint64
	if err := ioctl(disk, unix.BLKGETSIZE64, unsafe.Pointer(&size)); err != nil { //nolint:gosec // a system call
		return fmt.Errorf("the size of %s: %w", device, err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return err
	}
	blocks := size / uint64(fs.Bsize)                                    //nolint:gosec // positive
	if err := ioctl(fd, resizeFS, unsafe.Pointer(&blocks)); err != nil { //nolint:gosec // a system call
		return fmt.Errorf("grow it to %d blocks: %w", blocks, err)
	}
	return nil
}

func ioctl(fd int, request uintptr, argument unsafe.Pointer) error {
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(argument)); errno != 0 {
		return errno
	}
	return nil
}

// mountOverlay puts the writable folder above the image. Folders of the image can be renamed, which
// container engines allow less often. All files have one device and different numbers (xino), as
// where both folders are of one file system: programs that stay on a file system or look for hard
// links compare them.
func mountOverlay() error {
	upper, work := filepath.Join(dataDir, "upper"), filepath.Join(dataDir, "work")
	if err := makeUpper(upper, filepath.Join(dataDir, volumesDir)); err != nil {
		return err
	}
	if err := errors.Join(os.MkdirAll(work, 0o700), os.MkdirAll(rootDir, 0o755)); err != nil { //nolint:gosec // as in every root
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s,redirect_dir=on,index=off,metacopy=off,xino=on", imageDir, upper, work)
	if err := unix.Mount("overlay", rootDir, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount the root: %w", err)
	}
	return nil
}

// makeUpper makes the writable folder, with the mode and owner of the image's root, which it hides. The folder for the
// image's volumes is made before it, so that a disk which lacks that folder is of an earlier version of Drover.
func makeUpper(upper, volumes string) error {
	if _, err := os.Stat(upper); errors.Is(err, os.ErrNotExist) {
		if err := os.MkdirAll(volumes, 0o700); err != nil {
			return err
		}
	}
	if err := os.Mkdir(upper, 0o755); err != nil { //nolint:gosec // as in every root
		if errors.Is(err, os.ErrExist) {
			return nil
		}
		return err
	}
	var image unix.Stat_t
	if err := unix.Stat(imageDir, &image); err != nil {
		return err
	}
	return errors.Join(unix.Chown(upper, int(image.Uid), int(image.Gid)), unix.Chmod(upper, image.Mode&0o7777))
}

// SwitchRoot makes the mounted root this program's, and frees the initramfs's memory, except for this program, which uses
// it until its end. MountModules mounts the program's file, so the file must not be removed.
func SwitchRoot() error {
	for _, m := range early {
		if err := unix.Unmount(m.target, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m.target, err)
		}
	}
	if err := os.RemoveAll(modulesDir); err != nil {
		return err
	}
	if err := unix.Chdir(rootDir); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	return unix.Chdir("/")
}

// Sync writes all that programs have written to the disks.
func (r *Root) Sync() { unix.Sync() }

// Freeze blocks all further writes to the disks, once the earlier ones are on them.
func (r *Root) Freeze() (err error) {
	for _, disk := range r.disks {
		err = errors.Join(err, unix.IoctlSetInt(disk, fiFreeze, 0))
	}
	return err
}

// fiFreeze is FIFREEZE, _IOWR('X', 119, int).
const fiFreeze = 0xc0045877
