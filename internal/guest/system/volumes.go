// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/tree"
)

// Folders of the data disk: of the image's volumes, and in it the copy that is being made.
const volumesDir, unfinished = "volumes", "unfinished"

// volume is a volume and the folder of the image's root that it hides.
type volume struct {
	name   string // for errors
	folder string // its path, without links
	// disk is nil for a VOLUME of the image.
	disk *config.Volume
	// tree is a descriptor of its detached mount.
	tree int
}

// MountVolumes mounts the file systems of disks, and folders of the data disk at the paths of the image's VOLUMEs, except
// where a disk takes the place of one. What the image has at these paths is copied once. All copies are made before
// anything is mounted, since a volume may be in the folder of another one.
func (r *Root) MountVolumes(disks []config.Volume, paths []string, warn func(error)) error {
	if err := linkDisks(disks); err != nil {
		return err
	}
	all, err := r.findVolumes(disks, paths)
	if err != nil {
		return err
	}
	for i := range all {
		v := &all[i]
		if v.disk != nil {
			err = r.openDisk(v, warn)
		} else {
			err = r.openFolder(v)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	for _, v := range all {
		if err := v.mount(); err != nil {
			return fmt.Errorf("%s: %w", v.name, err)
		}
	}
	return nil
}

// linkDisks makes the links by which programs find disks, as udev does.
func linkDisks(disks []config.Volume) error {
	const folder = "/dev/disk/by-id"
	for _, d := range disks {
		device, err := FindDisk(d.Serial)
		if err == nil {
			err = os.MkdirAll(folder, 0o755) //nolint:gosec // as in every root
		}
		if err == nil {
			err = os.Symlink("../../"+filepath.Base(device), filepath.Join(folder, "virtio-"+d.Serial))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// findVolumes returns the volumes to mount, those in other ones after these.
func (r *Root) findVolumes(disks []config.Volume, paths []string) ([]volume, error) {
	var all []volume
	add := func(name, path string, disk *config.Volume) error {
		folder, err := FindFolder(path)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		i := slices.IndexFunc(all, func(v volume) bool { return v.folder == folder })
		switch {
		case i < 0:
			all = append(all, volume{name: name, folder: folder, disk: disk})
		case disk != nil:
			return fmt.Errorf("%s: %s has the same folder, %s", name, all[i].name, folder)
		}
		return nil
	}
	for i, d := range disks {
		if d.Path != "" {
			if err := add("the volume "+d.Serial, d.Path, &disks[i]); err != nil {
				return nil, err
			}
		}
	}
	var info unix.Stat_t
	if err := unix.Fstatat(r.data, volumesDir, &info, 0); err == nil { // a disk of an earlier version lacks the folder
		for _, path := range paths {
			if err := add(fmt.Sprintf("VOLUME %q of the image", path), path, nil); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(all, func(a, b volume) int { return cmp.Compare(a.folder, b.folder) }) // a folder before what is in it
	return all, nil
}

// FindFolder returns the path without links of a folder in the image's root, and makes the folder if it is missing.
func FindFolder(path string) (string, error) {
	fd, err := makeFolder(0, strings.Split(strings.Trim(path, "/"), "/")...)
	if err != nil {
		return "", err
	}
	defer func() { _ = unix.Close(fd) }()
	folder, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil {
		err = config.CheckMountPath(folder)
	}
	if err != nil {
		return "", fmt.Errorf("%s leads to a folder that %w", path, err)
	}
	return folder, nil
}

// makeFolder opens a folder in the image's root, by its parents, and makes what is missing. Links are followed within
// the root.
func makeFolder(resolve uint64, names ...string) (int, error) {
	how := unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS | resolve,
	}
	root, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: how.Flags})
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(root) }()
	parent := root
	for n, name := range names {
		fd, err := unix.Openat2(root, filepath.Join(names[:n+1]...), &how)
		if errors.Is(err, unix.ENOENT) {
			if err = unix.Mkdirat(parent, name, 0o755); err == nil {
				fd, err = unix.Openat2(parent, name, &how)
			}
		}
		if parent != root {
			_ = unix.Close(parent)
		}
		switch {
		case errors.Is(err, unix.EEXIST):
			return -1, fmt.Errorf("the image's /%s is a link to a folder that does not exist", filepath.Join(names[:n+1]...))
		case err != nil:
			return -1, fmt.Errorf("the image's /%s: %w", filepath.Join(names[:n+1]...), err)
		}
		parent = fd
	}
	return parent, nil
}

// openFolder opens the folder of the data disk for a VOLUME. A folder that is missing is filled under another name first,
// so that a copy which was interrupted is made again.
func (r *Root) openFolder(v *volume) (err error) {
	volumes := fmt.Sprintf("/proc/self/fd/%d/%s", r.data, volumesDir)
	sum := sha256.Sum256([]byte(v.folder)) // a name may have 255 bytes
	place := filepath.Join(volumes, hex.EncodeToString(sum[:]))
	if _, err := os.Lstat(place); errors.Is(err, os.ErrNotExist) {
		copied := filepath.Join(volumes, unfinished)
		if err := errors.Join(os.RemoveAll(copied), os.Mkdir(copied, 0o700)); err != nil {
			return err
		}
		if err := tree.Copy(v.folder, copied); err != nil {
			return errors.Join(err, os.RemoveAll(copied)) // the next boot needs the room
		}
		if err := unix.Syncfs(r.data); err != nil {
			return err
		}
		if err := os.Rename(copied, place); err != nil {
			return err
		}
		if err := unix.Syncfs(r.data); err != nil {
			return err
		}
	}
	v.tree, err = unix.OpenTree(unix.AT_FDCWD, place, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	return err
}

// openDisk opens the file system of a disk, makes it as large as the disk, and fills one that Drover has made and no guest
// has filled. The file system's UUID tells, and changes last.
func (r *Root) openDisk(v *volume, warn func(error)) error {
	device, err := FindDisk(v.disk.Serial)
	if err != nil {
		return err
	}
	if v.tree, err = openExt4(device, v.disk.ReadOnly); err != nil {
		return err
	}
	fd, err := unix.Openat(v.tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil || v.disk.ReadOnly {
		return err
	}
	r.disks = append(r.disks, fd) // until the machine's end
	if err := grow(fd, device); err != nil {
		warn(fmt.Errorf("%s keeps its size: %w", v.name, err))
	}
	id := fileSystemID{length: uint32(len(config.BlankUUID))}
	if err := ioctl(fd, getFSUUID, unsafe.Pointer(&id)); err != nil || id.uuid != config.BlankUUID { //nolint:gosec // a system call
		return err
	}
	return copyImageFiles(fd, v.folder)
}

// copyImageFiles copies a folder into an empty file system, or into one with a copy that was interrupted, and gives it
// another UUID.
func copyImageFiles(fd int, from string) error {
	to := fmt.Sprintf("/proc/self/fd/%d", fd)
	mark := filepath.Join(to, "."+unfinished)
	_ = os.Remove(filepath.Join(to, "lost+found")) // which some servers take for data, and e2fsck makes again
	entries, err := os.ReadDir(to)
	if err != nil {
		return err
	}
	_, err = os.Lstat(mark)
	if isInterrupted := err == nil; isInterrupted || len(entries) == 0 {
		if err := copyMarked(fd, from, to, mark, entries); err != nil {
			return err
		}
	}
	id := fileSystemID{length: uint32(len(config.BlankUUID))}
	_, _ = rand.Read(id.uuid[:]) // never fails
	id.uuid[6], id.uuid[8] = id.uuid[6]&0x0f|0x40, id.uuid[8]&0x3f|0x80
	if err := ioctl(fd, setFSUUID, unsafe.Pointer(&id)); err != nil { //nolint:gosec // a system call
		return fmt.Errorf("set its UUID: %w", err)
	}
	return unix.Syncfs(fd)
}

// copyMarked copies a folder into a file system. A file marks it until the copy is complete.
func copyMarked(fd int, from, to, mark string, old []os.DirEntry) error {
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		return err
	}
	if err := unix.Syncfs(fd); err != nil {
		return err
	}
	for _, entry := range old {
		if path := filepath.Join(to, entry.Name()); path != mark {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	if err := tree.Copy(from, to); err != nil {
		return err
	}
	if err := unix.Syncfs(fd); err != nil {
		return err
	}
	return os.Remove(mark)
}

// fileSystemID is struct fsuuid of Linux. getFSUUID and setFSUUID are EXT4_IOC_GETFSUUID and EXT4_IOC_SETFSUUID,
// _IOR('f', 44, struct fsuuid) and _IOW.
type fileSystemID struct {
	length, flags uint32
	uuid          [16]byte
}

const getFSUUID, setFSUUID = 0x8008662c, 0x4008662c

// openExt4 returns a detached mount of the ext4 file system of a disk.
func openExt4(device string, readOnly bool) (int, error) {
	fs, err := unix.Fsopen("ext4", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fs) }()
	flags, attributes := []string{"noinit_itable", "discard"}, 0
	if readOnly {
		flags, attributes = []string{"ro"}, unix.MOUNT_ATTR_RDONLY
	}
	err = errors.Join(unix.FsconfigSetString(fs, "source", device), unix.FsconfigSetString(fs, "errors", "remount-ro"))
	for _, flag := range flags {
		err = errors.Join(err, unix.FsconfigSetFlag(fs, flag))
	}
	if err != nil {
		return -1, err
	}
	if err := unix.FsconfigCreate(fs); errors.Is(err, unix.EINVAL) {
		return -1, errors.New("its disk lacks an ext4 file system; make one, or mount the disk in the guest and leave mountPath out")
	} else if err != nil {
		return -1, fmt.Errorf("mount %s: %w", device, err)
	}
	return unix.Fsmount(fs, unix.FSMOUNT_CLOEXEC, attributes)
}

// mount mounts the volume. Its folder may be in a volume that was mounted before.
func (v volume) mount() error {
	folder, err := FindFolder(v.folder)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(v.tree) }()
	return unix.MoveMount(v.tree, "", unix.AT_FDCWD, folder, unix.MOVE_MOUNT_F_EMPTY_PATH)
}
