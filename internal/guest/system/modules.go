// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package system

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/guest/modules"
)

// maxModprobe is how many bytes the path of that program may have: KMOD_PATH_LEN of Linux, without its end.
const maxModprobe = 255

// MountModules mounts the disk with the kernel's modules in the image's /lib/modules, and has the kernel load from there
// what it needs. SetLimits must come before.
func MountModules(serial string) error {
	if serial == "" {
		return nil
	}
	err := mountModules(serial)
	if err != nil {
		return fmt.Errorf("modules of the kernel cannot be loaded: %w", err)
	}
	return nil
}

func mountModules(serial string) error {
	device, err := FindDisk(serial)
	if err != nil {
		return err
	}
	var kernel unix.Utsname
	if err := unix.Uname(&kernel); err != nil {
		return err
	}
	fd, err := makeFolder(unix.RESOLVE_NO_XDEV, "lib", "modules", unix.ByteSliceToString(kernel.Release[:]))
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }()
	folder, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err != nil {
		return err
	}
	if err := unix.Mount(device, folder, "erofs", unix.MS_RDONLY|noPrograms, ""); err != nil {
		return fmt.Errorf("mount %s on %s: %w", device, folder, err)
	}
	return errors.Join(mountModprobe(filepath.Join(folder, modules.Program)), makeNodes(folder))
}

// mountModprobe mounts this program on a file, and has the kernel start it there.
func mountModprobe(path string) error {
	if len(path) > maxModprobe {
		return fmt.Errorf("the path %.100q has %d bytes, at most %d are possible", path, len(path), maxModprobe)
	}
	if err := unix.Mount("/proc/self/exe", path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount this program on %s: %w", path, err)
	}
	if err := unix.Mount("", path, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("make %s read-only: %w", path, err)
	}
	return os.WriteFile(modprobeSetting, []byte(path+"\n"), 0)
}

// nodeModes are the modes of devices that every user may open, as udev has them.
var nodeModes = map[string]uint32{"fuse": 0o666, "net/tun": 0o666}

// makeNodes makes the devices by which a program asks for a module: lines such as "fuse fuse c10:229" of depmod's modules.devname.
func makeNodes(folder string) error {
	text, err := os.ReadFile(filepath.Join(folder, modules.Devices)) //nolint:gosec // of the disk
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			continue // a comment
		}
		numbers, isCharacter := strings.CutPrefix(fields[2], "c")
		major, minor, _ := strings.Cut(numbers, ":")
		first, failed := strconv.ParseUint(major, 10, 32)
		second, failedToo := strconv.ParseUint(minor, 10, 32)
		if !isCharacter || failed != nil || failedToo != nil {
			continue // depmod knows no block devices of this kind
		}
		err = errors.Join(err, makeNode(fields[1], unix.Mkdev(uint32(first), uint32(second))))
	}
	return err
}

// makeNode makes a character device.
func makeNode(name string, device uint64) error {
	path, mode := filepath.Join("/dev", name), cmp.Or(nodeModes[name], 0o600)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // as in every root
		return err
	}
	err := unix.Mknod(path, unix.S_IFCHR|mode, int(device)) //nolint:gosec // as mknod(2) takes it
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return unix.Chmod(path, mode) // whatever the umask
}
