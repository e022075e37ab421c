// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package diskspace accounts for the free space of a disk that several writers share. It keeps a part of each disk free,
// the reserve, for the growing disks of machines and for other programs.
//
// Start with Disk.Allocate. Use a File to write content that may be large.
package diskspace

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// The reserve is a twentieth of a disk, at most maxReserved bytes.
const (
	reservedShare = 20
	maxReserved   = 1 << 30
)

// Disk accounts for the disk that has the folder Dir. Its writers never use the reserve. The disks of machines, logs and
// other writers without a Disk may use it. Each process has its separate account, so writers in two processes may together
// exceed the limit, but only by the writes that are under way, which are small. A Disk is safe for concurrent use.
type Disk struct {
	Dir string

	mu        sync.Mutex
	allocated int64 // bytes that were allocated and not released yet
}

// FullError means that the disk has too little free space for a write.
type FullError struct {
	// Needed is how many bytes must be free for the written part of the file, this write, and the reserve.
	Needed int64

	dir            string
	free, reserved int64
	cause          error // of a failed write to a disk with enough free space, such as a quota; else nil
}

// Error implements error.
func (e *FullError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("there is no space for it on the disk of %s: %s", e.dir, e.cause)
	}
	return fmt.Sprintf("there is no space for it: %d bytes are free on the disk of %s, of which %d bytes must stay free", e.free, e.dir, e.reserved)
}

// Unwrap returns the cause, nil for none.
func (e *FullError) Unwrap() error { return e.cause }

// Allocate allocates space for a write of size bytes. It fails with a FullError if the write would use the reserve, or space
// that other writers have allocated. Call release after the write, when the disk itself shows less free space.
func (d *Disk) Allocate(size int64) (release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	free, reserved, err := d.measureSpace()
	if err != nil {
		return nil, err
	}
	if free -= d.allocated; size > free-reserved {
		return nil, &FullError{Needed: size + reserved, dir: d.Dir, free: max(free, 0), reserved: reserved}
	}
	d.allocated += size
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.allocated -= size
	}, nil
}

// Free returns how many bytes are free, the reserve included.
func (d *Disk) Free() (int64, error) {
	free, _, err := d.measureSpace()
	return free, err
}

// Size returns how many bytes the disk has.
func (d *Disk) Size() (int64, error) {
	var disk unix.Statfs_t
	err := os.NewSyscallError("statfs", unix.Statfs(d.Dir, &disk))
	return int64(disk.Blocks) * disk.Bsize, err //nolint:gosec // a disk has less than 8 EiB
}

func (d *Disk) measureSpace() (free, reserved int64, err error) {
	var disk unix.Statfs_t
	err = os.NewSyscallError("statfs", unix.Statfs(d.Dir, &disk))
	return int64(disk.Bavail) * disk.Bsize, min(int64(disk.Blocks)*disk.Bsize/reservedShare, maxReserved), err //nolint:gosec // as above
}

// maxWrite is how many bytes a File writes at a time.
const maxWrite = 1 << 20

// File writes to a file, and fails with a FullError when the disk is full up to the reserve.
type File struct {
	File *os.File
	Disk *Disk

	written int64
}

// Written returns how many bytes were written.
func (f *File) Written() int64 { return f.written }

// WriteAt implements io.WriterAt.
func (f *File) WriteAt(p []byte, offset int64) (written int, err error) {
	for len(p) > 0 && err == nil {
		var n int
		n, err = f.writePart(p[:min(len(p), maxWrite)], offset+int64(written))
		p, written = p[n:], written+n
	}
	return written, err
}

func (f *File) writePart(p []byte, offset int64) (n int, err error) {
	release, err := f.Disk.Allocate(int64(len(p)))
	if err == nil {
		defer release()
		n, err = f.File.WriteAt(p, offset)
		f.written += int64(n)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // another program has filled the disk, or a quota is exceeded
		_, reserved, _ := f.Disk.measureSpace()
		err = &FullError{Needed: int64(len(p)-n) + reserved, dir: f.Disk.Dir, cause: err}
	}
	if full, ok := errors.AsType[*FullError](err); ok {
		full.Needed += f.written
	}
	return n, err
}

// Truncate sets the file's size. It adds only holes, which use no space.
func (f *File) Truncate(size int64) error { return f.File.Truncate(size) }

// Clear punches a hole into the file, or writes zeros if the file system does not support holes.
func (f *File) Clear(offset, size int64) error {
	err := unix.Fallocate(int(f.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
	if err == nil || (!errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS)) {
		return os.NewSyscallError("fallocate", err)
	}
	zeros := make([]byte, min(size, maxWrite))
	for size > 0 {
		n, err := f.WriteAt(zeros[:min(size, maxWrite)], offset)
		if err != nil {
			return err
		}
		offset, size = offset+int64(n), size-int64(n)
	}
	return nil
}
