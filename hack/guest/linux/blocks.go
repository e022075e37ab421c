// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/hack/guest/blocks"
)

// roundEvery is how often a round of blocks is written.
const roundEvery = 20 * time.Millisecond

// writeBlocks writes blocks to the disks that blocks=NAME,NAME on the kernel's command line
// names, until the guest ends or a disk fails.
func writeBlocks(cmdline string) error {
	names := findArgument(cmdline, "blocks=")
	if names == "" {
		return nil
	}
	var disks []*blockDisk
	for n, name := range strings.Split(names, ",") {
		d, err := openBlockDisk(uint32(n), filepath.Join("/dev", name))
		if err != nil {
			return err
		}
		disks = append(disks, d)
	}
	var synced [blocks.Disks]uint64
	for n, d := range disks {
		synced[n] = d.last.Count
	}
	for {
		for n, d := range disks {
			if err := d.writeRound(synced); err != nil {
				return err
			}
			synced[n] = d.last.Count
		}
		<-time.After(roundEvery)
	}
}

// blockDisk is a disk with blocks.
type blockDisk struct {
	*os.File
	// direct is the disk without the guest's cache.
	direct *os.File
	// last is a block of the last whole round.
	last blocks.Block
}

// openBlockDisk finds the last round of which all blocks are there. All of it is on the disk,
// since it was read from there, so the next round goes on from it.
func openBlockDisk(number uint32, path string) (*blockDisk, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0) //nolint:gosec // of this guest
	if err != nil {
		return nil, err
	}
	d := &blockDisk{File: f, last: blocks.Block{Disk: number}}
	if d.direct, err = os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0); err != nil { //nolint:gosec // of this guest
		return nil, err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return nil, err
	}
	found := map[uint64]int{}
	for area := range blocks.AreasAt(size) {
		for slot := range uint64(blocks.Slots) {
			data := make([]byte, blocks.Size)
			if _, err := f.ReadAt(data, blocks.Place{Area: area, Count: slot}.Offset()); err != nil {
				return nil, err
			}
			b, ok := blocks.Decode(data)
			if !ok {
				continue
			}
			if found[b.Count]++; b.Count > d.last.Count && found[b.Count] == blocks.AreasOf(b.Count, b.GrownAt) {
				d.last = b
			}
		}
	}
	d.last.From = d.last.Count
	fmt.Printf("drover linux guest found %d rounds on %s\n", d.last.Count, path)
	return d, nil
}

// writeRound writes the next round, and syncs it.
func (d *blockDisk) writeRound(synced [blocks.Disks]uint64) error {
	size, err := d.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	next := d.last
	next.Count, next.Synced = next.Count+1, synced
	if next.GrownAt == 0 && blocks.AreasAt(size) == blocks.AreasOf(1, 1) {
		next.GrownAt = next.Count
	}
	if err := d.discard(blocks.Discarded(next.Count).Offset(), blocks.Stride); err != nil {
		return err
	}
	for area := range blocks.AreasOf(next.Count, next.GrownAt) {
		next.Area = uint32(area)
		if _, err := d.WriteAt(next.Encode(), blocks.Place{Area: area, Count: next.Count}.Offset()); err != nil {
			return err
		}
	}
	if err := d.Sync(); err != nil {
		return err
	}
	d.last = next
	return d.scribble()
}

// scratchWrites is how many clusters a round writes to without a sync.
const scratchWrites = 3

// scribble writes to separate clusters, and discards older ones, so that there is always
// something that is not synced.
func (d *blockDisk) scribble() error {
	page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(page) }()
	for n := range uint64(scratchWrites) {
		page[0]++
		at := d.last.Count*scratchWrites + n
		if _, err := d.direct.WriteAt(page, blocks.Scratch(at)); err != nil {
			return err
		}
		if err := d.discard(blocks.Scratch(at+scratchWrites*blocks.Slots/2), blocks.Stride); err != nil {
			return err
		}
	}
	return nil
}

// discard tells the disk that a part of it is not needed.
func (d *blockDisk) discard(offset, length int64) error {
	part := [2]uint64{uint64(offset), uint64(length)} //nolint:gosec // not negative
	//nolint:gosec // the kernel wants a pointer
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, d.Fd(), unix.BLKDISCARD, uintptr(unsafe.Pointer(&part))); errno != 0 {
		return fmt.Errorf("discarding a part of %s: %w", d.Name(), errno)
	}
	return nil
}
