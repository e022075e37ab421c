// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package room accounts for the room on a disk that several writers fill at the same time. A part of each disk is
// reserved: for the disks of machines, which grow, and for everything else that writes there.
//
// Start with Disk.Take. Use a File to write content that may be large.
package room

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

// Disk is the account of a disk, which a folder on it identifies. Writers that use the account cannot take the reserve;
// disks of machines, logs and others do not use it. Each process has a separate account. Writers take little at a time,
// so two accounts together exceed their limit at most by the writes that are under way. A Disk is safe for concurrent
// use.
type Disk struct {
	Dir string

	mu    sync.Mutex
	taken int64 // bytes that were taken and not released yet
}

// LackError means that the disk lacks room for a write.
type LackError struct {
	// Needed is how many bytes have to be free for the file, as far as it was written, the reserve included.
	Needed int64

	dir            string
	free, reserved int64
	cause          error // why the write failed although the disk shows room, such as a quota; or nil
}

// Error implements error.
func (e *LackError) Error() string {
	if e.cause != nil {
		return fmt.Sprintf("there is no room for it on the disk of %s: %s", e.dir, e.cause)
	}
	return fmt.Sprintf("there is no room for it: %d bytes are free on the disk of %s, of which %d bytes must stay free", e.free, e.dir, e.reserved)
}

// Unwrap returns the cause, nil for none.
func (e *LackError) Unwrap() error { return e.cause }

// Take takes room for bytes that are about to be written. It fails with a LackError if they would use room of the
// reserve, or room that others have taken. Call release after the write, when the disk itself shows less room.
func (d *Disk) Take(size int64) (release func(), err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	free, reserved, err := d.measureRoom()
	if err != nil {
		return nil, err
	}
	if free -= d.taken; size > free-reserved {
		return nil, &LackError{Needed: size + reserved, dir: d.Dir, free: max(free, 0), reserved: reserved}
	}
	d.taken += size
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.taken -= size
	}, nil
}

// Free returns how many bytes are free, the reserve included.
func (d *Disk) Free() (int64, error) {
	free, _, err := d.measureRoom()
	return free, err
}

// Size returns how many bytes the disk has.
func (d *Disk) Size() (int64, error) {
	var disk unix.Statfs_t
	err := os.NewSyscallError("statfs", unix.Statfs(d.Dir, &disk))
	return int64(disk.Blocks) * disk.Bsize, err //nolint:gosec // a disk has less than 8 EiB
}

func (d *Disk) measureRoom() (free, reserved int64, err error) {
	var disk unix.Statfs_t
	err = os.NewSyscallError("statfs", unix.Statfs(d.Dir, &disk))
	return int64(disk.Bavail) * disk.Bsize, min(int64(disk.Blocks)*disk.Bsize/reservedShare, maxReserved), err //nolint:gosec // as above
}

// maxWrite is how much room a File takes at a time.
const maxWrite = 1 << 20

// File writes to a file of a disk, as far as there is room.
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
	release, err := f.Disk.Take(int64(len(p)))
	if err == nil {
		defer release()
		n, err = f.File.WriteAt(p, offset)
		f.written += int64(n)
	}
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) { // something else has filled the disk, or there is a quota
		_, reserved, _ := f.Disk.measureRoom()
		err = &LackError{Needed: int64(len(p)-n) + reserved, dir: f.Disk.Dir, cause: err}
	}
	if lacks, ok := errors.AsType[*LackError](err); ok {
		lacks.Needed += f.written
	}
	return n, err
}

// Truncate sets the file's size. A part that this adds takes no room.
func (f *File) Truncate(size int64) error { return f.File.Truncate(size) }

// Clear makes a part of the file a hole, or writes zeros where there are no holes.
func (f *File) Clear(offset, size int64) error {
	err := unix.Fallocate(int(f.File.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, size)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.ENOSYS) {
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
