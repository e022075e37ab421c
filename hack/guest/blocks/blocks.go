// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package blocks has the blocks by which a guest for tests shows what it has synced. The guest
// writes them in rounds: a round writes one block to each area of a disk, and syncs the disk.
// Every block has the number of its round, checksums, and what the guest had synced before. So
// a block that arrives at a disk is a proof that the rounds which it names were synced.
//
// Start with Block. Required says which blocks a disk must have.
package blocks

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

const (
	// Size is that of a block, in bytes.
	Size = 8 << 10
	// Slots is how many rounds have places of their own. The next ones overwrite the first.
	Slots = 16
	// Stride is the distance of slots: a cluster of a qcow2 file.
	Stride = 64 << 10
	// Disks is how many disks a guest writes to: the root disk and a volume.
	Disks = 2
)

// areas are where the blocks of a round begin. Each area has another L2 table of a qcow2 file,
// and the last one is on a disk only after it has grown.
var areas = [...]int64{1 << 20, 600 << 20, 1100 << 20}

// SmallSize is a size of a disk without the last area, and LargeSize one of a disk with it.
const (
	SmallSize = 768 << 20
	LargeSize = 1280 << 20
)

// Block is a block without its filling.
type Block struct {
	// Disk is the number of the disk, 0 for the root disk.
	Disk uint32
	Area uint32
	// Count is the number of the round, from 1 on.
	Count uint64
	// GrownAt is the first round that wrote to the last area, 0 for none.
	GrownAt uint64
	// From is the last whole round that the guest found when it booted.
	From uint64
	// Synced are the rounds that the guest had synced on each disk when it wrote the block.
	Synced [Disks]uint64
}

var magic = []byte("drover guest block\n\x00\x01\x02\x03\x04")

// Encode returns the block with its filling, which is another one in each block, and a
// checksum at its end.
func (b Block) Encode() []byte {
	out := bytes.NewBuffer(bytes.Clone(magic))
	_ = binary.Write(out, binary.LittleEndian, b)
	for filling := sha256.Sum256(out.Bytes()); out.Len() < Size; filling = sha256.Sum256(filling[:]) {
		out.Write(filling[:])
	}
	data := out.Bytes()[:Size]
	sum := sha256.Sum256(data[:Size-sha256.Size])
	copy(data[Size-sha256.Size:], sum[:])
	return data
}

// Decode returns the block that data begins with, if it is whole.
func Decode(data []byte) (b Block, ok bool) {
	if len(data) < Size || !bytes.HasPrefix(data, magic) {
		return b, false
	}
	sum := sha256.Sum256(data[:Size-sha256.Size])
	if !bytes.Equal(sum[:], data[Size-sha256.Size:Size]) {
		return b, false
	}
	return b, binary.Read(bytes.NewReader(data[len(magic):]), binary.LittleEndian, &b) == nil
}

// AreasAt returns how many areas a disk of a size has.
func AreasAt(size int64) int {
	n := 0
	for _, begin := range areas {
		if begin+Slots*Stride <= size {
			n++
		}
	}
	return n
}

// AreasOf returns how many areas a round has written to.
func AreasOf(count, grownAt uint64) int {
	if grownAt == 0 || count < grownAt {
		return len(areas) - 1
	}
	return len(areas)
}

// Place is where a block is.
type Place struct {
	Area  int
	Count uint64
}

// Offset returns where on the disk that is.
func (p Place) Offset() int64 { return areas[p.Area] + int64(p.Count%Slots)*Stride }

// Discarded returns the slot that a round discards: an old one of the first area, which a later
// round writes to again.
func Discarded(count uint64) Place { return Place{Area: 0, Count: count + Slots/2} }

// Scratch returns an offset on the disk for what a guest does not sync: a cluster of those that
// rounds use in turns.
func Scratch(n uint64) int64 { return areas[1] + int64(Slots+n%scratchSlots)*Stride }

const scratchSlots = 64

// Required returns the places that a disk must have whole once rounds are synced. A guest that has just
// booted may have found one more whole round, of which no block says that it was synced. The round after
// that, of which anything may be there, has overwritten a slot and discarded another.
func Required(synced, grownAt uint64) []Place {
	var all []Place
	last := synced + 2 // that may have begun
	for count := max(last, Slots) + 1 - Slots; count <= synced; count++ {
		for area := range AreasOf(count, grownAt) {
			if area != 0 || count+Slots/2 > last {
				all = append(all, Place{area, count})
			}
		}
	}
	return all
}
