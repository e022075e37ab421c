// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

func lockExclusively(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

func freeBytes(path string) (uint64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(path, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil //nolint:gosec // A block size is positive.
}

// maxSocketPath is the longest path that fits into sun_path with its closing zero.
const maxSocketPath = 107

// Socket returns the path of a socket of this name in the run folder. If that is longer
// than a socket's path may be, it goes through an open descriptor of the folder. Only
// this process can use such a path, and it needs no second folder elsewhere.
func (d *Dir) Socket(name string) (string, error) {
	path := filepath.Join(d.Run(), name)
	if len(path) <= maxSocketPath {
		return path, nil
	}
	if d.run == nil {
		run, err := os.Open(d.Run())
		if err != nil {
			return "", err
		}
		d.run = run
	}
	short := fmt.Sprintf("/proc/self/fd/%d/%s", d.run.Fd(), name)
	if _, err := os.Stat(filepath.Dir(short)); err != nil {
		return "", fmt.Errorf("socket path %s has %d bytes, at most %d fit: choose a shorter --data-dir",
			path, len(path), maxSocketPath)
	}
	return short, nil
}

// BecomeOwner gives up root's rights for those of the user who owns a file or folder: that
// user could not read files that root writes there, and decides what is in it, such as the
// programs to run.
func BecomeOwner(path string) error {
	var stat syscall.Stat_t
	err := syscall.Stat(path, &stat)
	if err != nil || os.Geteuid() != 0 || stat.Uid == 0 {
		return nil //nolint:nilerr // Opening the folder next reports what is wrong with it.
	}
	uid := int(stat.Uid)
	gid, groups := groupsOf(uid, int(stat.Gid))
	if err := errors.Join(syscall.Setgroups(groups), syscall.Setgid(gid), syscall.Setuid(uid)); err != nil {
		return fmt.Errorf("acting as the user %d, who owns %s: %w", uid, path, err)
	}
	return nil
}

// groupsOf returns the groups that a login gives to a user, such as that of Docker's socket.
// A user whom the host does not list has the group of the folder alone.
func groupsOf(uid, ofFolder int) (gid int, all []int) {
	listed, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return ofFolder, []int{ofFolder}
	}
	if gid, err = strconv.Atoi(listed.Gid); err != nil {
		return ofFolder, []int{ofFolder}
	}
	all = []int{gid}
	ids, _ := listed.GroupIds()
	for _, id := range ids {
		if n, err := strconv.Atoi(id); err == nil && n != gid {
			all = append(all, n)
		}
	}
	return gid, all
}
