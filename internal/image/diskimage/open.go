// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"errors"
	"os"
	"syscall"
)

// OpenRegular opens a file for reading, and for writing too unless it is readOnly. A QEMU that
// its guest broke out of may have made the path lead to something else. Opening a pipe would
// wait for its other end.
func OpenRegular(path string, readOnly bool) (*os.File, error) {
	flags := os.O_RDWR
	if readOnly {
		flags = os.O_RDONLY
	}
	f, err := os.OpenFile(path, flags|syscall.O_NONBLOCK, 0) //nolint:gosec // the caller's choice
	if err != nil {
		return nil, err
	}
	if err := CheckRegular(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// OpenDisk opens a disk of a machine that CreateQcow2 made.
func OpenDisk(path string, readOnly bool) (*os.File, error) {
	f, err := OpenRegular(path, readOnly)
	if err != nil {
		return nil, err
	}
	if err := CheckDisk(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// CheckRegular refuses anything that is not a regular file.
func CheckRegular(f *os.File) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	return err
}
