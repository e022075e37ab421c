// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package output keeps the output of a container image's command: standard output and standard error, each in a file to
// which QEMU appends.
//
// A position is an offset in such a file. Positions only grow, even from run to run: to remove the oldest output, the
// supervisor punches holes into the file (Bounded). So a Reader always knows how much it has missed. Start with Create.
package output

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/machine/proc"
)

// Streams of a command, as indexes of FileNames and Positions.
const (
	Stdout = iota
	Stderr
)

// FileNames are the names of the files in a machine's directory.
var FileNames = [2]string{"stdout.log", "stderr.log"}

// Positions has a position in each file.
type Positions [2]int64

// DefaultBound is how much output of each stream is kept by default.
const DefaultBound = 50 << 20

const (
	// holeUnit is the unit in which room is freed, a multiple of every file system's block size.
	holeUnit = 64 << 10
	// reserve is how much room is allocated behind the output. QEMU retries a write to a full disk in a busy loop, so
	// the disk should never be full when it writes.
	reserve = 4 << 20
)

// Create opens the files of a machine's directory for QEMU, and makes missing ones. It allocates room for the first
// output, and returns the positions at which the run begins. The caller closes the files, even after an error.
func Create(path func(name string) string) (files []*os.File, begin Positions, err error) {
	for stream, name := range FileNames {
		f, err := os.OpenFile(path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return files, begin, err
		}
		files = append(files, f) // before any error, so that the caller can close it
		if begin[stream], err = sizeOf(f); err != nil {
			return files, begin, err
		}
		if err := allocateReserve(f, begin[stream]); err != nil {
			return files, begin, fmt.Errorf("allocating disk space for %s: %w", f.Name(), err)
		}
	}
	return files, begin, nil
}

func sizeOf(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// allocateReserve allocates the reserve behind a position. It does nothing on a file system without fallocate.
func allocateReserve(f *os.File, from int64) error {
	err := fallocate(f, unix.FALLOC_FL_KEEP_SIZE, from, reserve)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func fallocate(f *os.File, mode uint32, from, length int64) (err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Fallocate(int(f.Fd()), mode, from, length)
	}
	return err
}

// Bounded is an output file whose disk space is bounded.
type Bounded struct {
	File *os.File
	// Most is how much output is kept, in bytes.
	Most int64

	size           int64 // at the last call of Bound
	freedBefore    int64 // there is a hole before this position
	reservedBefore int64 // disk space is allocated up to this position
}

// Bound frees the disk space of old output, so that Most is kept, and allocates the reserve for new output. If the disk
// is full, it frees more, since new output is worth more than old. It reports whether there was new output.
func (b *Bounded) Bound() (grew bool, err error) {
	size, err := sizeOf(b.File)
	if err != nil {
		return false, err
	}
	if size < b.size { // QEMU has truncated the file
		b.freedBefore, b.reservedBefore = 0, 0
	}
	grew, b.size = size != b.size, size
	if err := b.freeBefore(size - b.Most); err != nil {
		return grew, err
	}
	if size+reserve/2 <= b.reservedBefore {
		return grew, nil
	}
	err = allocateReserve(b.File, size)
	for kept := (size - b.freedBefore) / 2; errors.Is(err, unix.ENOSPC) && kept >= holeUnit; kept /= 2 {
		if err := b.freeBefore(size - kept); err != nil {
			return grew, err
		}
		err = allocateReserve(b.File, size)
	}
	if err == nil {
		b.reservedBefore = size + reserve
	}
	return grew, err
}

// Intervals between two calls of Bound, with and without new output in between.
const busyInterval, idleInterval = 50 * time.Millisecond, time.Second

// Keep bounds files until ctx ends. It calls onFailure when an error differs from the last one.
func Keep(ctx context.Context, files []*Bounded, onFailure func(error)) {
	for reported := ""; ctx.Err() == nil; {
		wait, failures := idleInterval, error(nil)
		for _, f := range files {
			grew, err := f.Bound()
			if grew {
				wait = busyInterval
			}
			failures = errors.Join(failures, err)
		}
		if failures != nil && failures.Error() != reported {
			reported = failures.Error()
			onFailure(failures)
		}
		proc.Pause(ctx, wait)
	}
}

// freeBefore frees the disk space of the output before a position.
func (b *Bounded) freeBefore(position int64) error {
	if position = position / holeUnit * holeUnit; position <= b.freedBefore {
		return nil
	}
	if err := fallocate(b.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, position); err != nil {
		return fmt.Errorf("freeing the disk space of old output: %w", err)
	}
	b.freedBefore = position
	return nil
}
