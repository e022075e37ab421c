// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package datadir

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

func lockExclusively(f *os.File) error {
	return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
}

// unlock ends the lock of lockExclusively, also for a process that is being forked at this moment and has the file too.
func unlock(f *os.File) { _ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) }

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
