// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskimage

import (
	"errors"
	"os"
	"syscall"
)

// OpenRegular opens a regular file for reading, and also for writing unless readOnly is set. After
// a guest broke out, QEMU may have replaced the file, such as by a pipe. O_NONBLOCK prevents
// waiting for the other end of a pipe.
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

// OpenDisk opens a disk that CreateQcow2 made, and checks it with CheckDisk.
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

// CheckRegular fails for anything that is not a regular file.
func CheckRegular(f *os.File) error {
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	return err
}
