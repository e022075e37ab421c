// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package output keeps the output of the command in a container image's machine: standard output and standard error,
// each in a file to which QEMU appends.
//
// A position is an offset in such a file. Positions only grow, also from run to run: the supervisor frees the room of the
// oldest output (Bounded), which moves nothing. So a Reader always knows what it has missed. Start with Create.
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

// Streams of a command.
const (
	Stdout = iota
	Stderr
)

// FileNames are the names of the files in a machine's directory, by stream.
var FileNames = [2]string{"stdout.log", "stderr.log"}

// Positions are positions in the files, by stream.
type Positions [2]int64

// DefaultBound is how much output of each stream is kept by default.
const DefaultBound = 50 << 20

const (
	// step is the unit in which room is freed. It is a multiple of every file system's blocks.
	step = 64 << 10
	// ahead is how much room is taken on the host's disk before the output comes. QEMU repeats a write that finds no
	// room without a pause, so it should never meet a full disk.
	ahead = 4 << 20
)

// Create opens the files of a machine's directory for QEMU, and makes them if they are missing. It takes room for the
// first output, and returns the positions at which the run begins. The caller closes the files, also after an error.
func Create(path func(name string) string) (files []*os.File, begin Positions, err error) {
	for stream, name := range FileNames {
		f, err := os.OpenFile(path(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return files, begin, err
		}
		files = append(files, f) // also for a caller who gets an error
		if begin[stream], err = sizeOf(f); err != nil {
			return files, begin, err
		}
		if err := takeRoom(f, begin[stream]); err != nil {
			return files, begin, fmt.Errorf("taking room for %s: %w", f.Name(), err)
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

// takeRoom takes room behind a position. A file system that cannot do that gives it when it is needed.
func takeRoom(f *os.File, from int64) error {
	err := allocate(f, unix.FALLOC_FL_KEEP_SIZE, from, ahead)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return nil
	}
	return err
}

func allocate(f *os.File, mode uint32, from, length int64) (err error) {
	for err = unix.EINTR; errors.Is(err, unix.EINTR); {
		err = unix.Fallocate(int(f.Fd()), mode, from, length)
	}
	return err
}

// Bounded is a file whose room is bounded.
type Bounded struct {
	File *os.File
	// Most is how much output is kept, in bytes.
	Most int64

	// size is the last size of the file. The room before freed was freed, and the room before taken was taken.
	size, freed, taken int64
}

// Bound frees the room of the oldest output, so that as much as Most is left, and takes room for the next output. On a
// full disk more is freed: new output counts more than old. It reports whether there was new output.
func (b *Bounded) Bound() (grew bool, err error) {
	size, err := sizeOf(b.File)
	if err != nil {
		return false, err
	}
	if size < b.size { // QEMU has cut it
		b.freed, b.taken = 0, 0
	}
	grew, b.size = size != b.size, size
	if err := b.freeRoom(size - b.Most); err != nil {
		return grew, err
	}
	if size+ahead/2 <= b.taken {
		return grew, nil
	}
	err = takeRoom(b.File, size)
	for kept := (size - b.freed) / 2; errors.Is(err, unix.ENOSPC) && kept >= step; kept /= 2 {
		if err := b.freeRoom(size - kept); err != nil {
			return grew, err
		}
		err = takeRoom(b.File, size)
	}
	if err == nil {
		b.taken = size + ahead
	}
	return grew, err
}

// Intervals between two calls of Bound, with and without new output in between.
const boundSoon, boundLate = 50 * time.Millisecond, time.Second

// Keep bounds files until ctx ends. It reports each new failure.
func Keep(ctx context.Context, files []*Bounded, onFailure func(error)) {
	for said := ""; ctx.Err() == nil; {
		wait, failures := boundLate, error(nil)
		for _, f := range files {
			grew, err := f.Bound()
			if grew {
				wait = boundSoon
			}
			failures = errors.Join(failures, err)
		}
		if failures != nil && failures.Error() != said {
			said = failures.Error()
			onFailure(failures)
		}
		proc.Pause(ctx, wait)
	}
}

// freeRoom frees the room of the output before a position.
func (b *Bounded) freeRoom(before int64) error {
	if before = before / step * step; before <= b.freed {
		return nil
	}
	if err := allocate(b.File, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, before); err != nil {
		return fmt.Errorf("freeing the room of old output: %w", err)
	}
	b.freed = before
	return nil
}
