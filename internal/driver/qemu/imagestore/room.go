// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package imagestore

import (
	"fmt"
	"os"
	"syscall"
)

// What an image has to leave free on its disk, for the disks of machines that grow
// and for all else that writes there: a twentieth of it, but no more than maxKept
// bytes.
const (
	keptShare = 20
	maxKept   = 1 << 30
)

// roomyFile takes what there is room for.
type roomyFile struct {
	file *os.File
	dir  string // on its disk, for people
	size int64
}

func (f *roomyFile) Write(p []byte) (int, error) {
	f.size += int64(len(p))
	if err := f.checkRoom(int64(len(p)), fmt.Sprintf("it has at least %d bytes", f.size)); err != nil {
		return 0, err
	}
	return f.file.Write(p)
}

// checkRoom refuses more bytes than there is room for; size says how large the
// image is, as far as that is known.
func (f *roomyFile) checkRoom(more int64, size string) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(f.dir, &disk); err != nil {
		return os.NewSyscallError("statfs", err)
	}
	block := uint64(disk.Bsize) //nolint:gosec // A block has a size.
	free, kept := disk.Bavail*block, min(disk.Blocks*block/keptShare, maxKept)
	if uint64(more)+kept <= free { //nolint:gosec // not negative
		return nil
	}
	return fmt.Errorf("%s, and there is no room for it: %d bytes are free on the disk of %s, of which %d have to stay so", size, free, f.dir, kept)
}
