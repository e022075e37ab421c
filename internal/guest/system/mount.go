// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package system sets up Linux below a container image's program: modules, disks, file systems, network,
// the files of /etc that a container engine writes, and the end. internal/guest/boot calls it in order.
//
// Start with MountEarly, and SwitchRoot in root.go.
package system

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Folders of the initramfs.
const (
	modulesDir = "/modules"
	imageDir   = "/image" // the image's disk
	dataDir    = "/data"  // the data disk
	rootDir    = "/root"  // both together
)

// mount is a file system.
type mount struct {
	kind, target string
	flags        uintptr
	options      string
}

const noPrograms = unix.MS_NOSUID | unix.MS_NOEXEC | unix.MS_NODEV

const procDir = "/proc"

var procMount = mount{"proc", procDir, noPrograms, ""}

// early are the file systems that the initramfs needs.
var early = []mount{
	{"sysfs", "/sys", noPrograms, ""},
	{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
}

// late are the file systems that a program finds, as under a container engine.
var late = []mount{
	procMount,
	{"sysfs", "/sys", noPrograms, ""},
	{"cgroup2", "/sys/fs/cgroup", noPrograms, "nsdelegate"},
	{"devtmpfs", "/dev", unix.MS_NOSUID, "mode=0755"},
	{"devpts", "/dev/pts", unix.MS_NOSUID | unix.MS_NOEXEC, "mode=0620,gid=5,ptmxmode=0666"},
	{"tmpfs", "/dev/shm", noPrograms, "mode=1777"}, // of half the memory: tmpfs(5)
	{"mqueue", "/dev/mqueue", noPrograms, ""},
}

// MountProc replaces /proc by the one of this process's PID namespace.
func MountProc() error {
	if err := unix.Unmount(procDir, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s: %w", procDir, err)
	}
	return procMount.mount()
}

// MountEarly mounts what the initramfs needs.
func MountEarly() error { return mountAll(early) }

func mountAll(all []mount) error {
	for _, m := range all {
		if err := m.mount(); err != nil {
			return err
		}
	}
	return nil
}

func (m mount) mount() error {
	if err := os.MkdirAll(m.target, 0o755); err != nil { //nolint:gosec // as in every root
		return fmt.Errorf("make the folder of a file system: %w", err)
	}
	if err := unix.Mount(m.kind, m.target, m.kind, m.flags, m.options); err != nil {
		return fmt.Errorf("mount %s on %s: %w", m.kind, m.target, err)
	}
	return nil
}

// MountLate mounts what programs expect, once the root is the image's.
func MountLate() error {
	if err := mountAll(late); err != nil {
		return err
	}
	for name, target := range map[string]string{"fd": "", "stdin": "/0", "stdout": "/1", "stderr": "/2"} {
		if err := os.Symlink("/proc/self/fd"+target, filepath.Join("/dev", name)); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// LinkConsole makes /dev/console the standard output of process 1. A container lacks /dev/console, so an init that
// prefers this device prints to standard output there.
func LinkConsole() error {
	const console = "/dev/console"
	return errors.Join(os.Remove(console), os.Symlink("/proc/1/fd/1", console))
}
