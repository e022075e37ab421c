// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package diskimage reads and makes disk images. Probe determines what an image is and
// refuses what is unsafe to boot if strangers made it. CreateQcow2 makes new disks, blank
// or on top of an image.
package diskimage

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Formats of images.
const (
	Raw   = "raw"
	Qcow2 = "qcow2"
)

const sector = 512

// WholeSectors returns a size in bytes, rounded up to a size that a disk can have in QEMU.
func WholeSectors(size int64) int64 { return (size + sector - 1) / sector * sector }

// Info describes an image.
type Info struct {
	Format string
	// Size is the size that a machine sees.
	Size int64
}

// otherFormats are formats that must not be mistaken for raw images, with their first
// bytes.
var otherFormats = []struct{ magic, name string }{
	{"KDMV", "a VMDK image"},
	{"# Disk DescriptorFile", "a VMDK descriptor"},
	{"vhdxfile", "a VHDX image"},
	{"conectix", "a VHD image"},
	{"QED\x00", "a QED image"},
	{"<<< ", "a VDI image"},
	{"\x1f\x8b", "compressed by gzip"},
	{"\xfd7zXZ\x00", "compressed by xz"},
	{"BZh", "compressed by bzip2"},
	{"\x28\xb5\x2f\xfd", "compressed by zstd"},
	{"PK\x03\x04", "a zip archive"},
	{"\x7fELF", "an ELF program"},
}

// signatures are marks that a raw disk has at certain offsets.
var signatures = []struct {
	at    int64
	magic string
}{
	{510, "\x55\xaa"},          // boot sector, MBR, the MBR that protects a GPT
	{512, "EFI PART"},          // GPT
	{4096, "EFI PART"},         // GPT with sectors of 4 KiB
	{1080, "\x53\xef"},         // ext2, ext3, ext4
	{0, "XFSB"},                // XFS
	{65600, "_BHRfS_M"},        // Btrfs
	{0, "hsqs"},                // Squashfs
	{1024, "\xe2\xe1\xf5\xe0"}, // EROFS
	{32769, "CD001"},           // ISO 9660
	{512, "LABELONE"},          // LVM
}

// Probe determines what an image is, by its first bytes. An error says why it cannot be
// used. Images that point to other files are refused: through them, anyone who may name
// an image could read any file of the host.
//
// It does not read the tables of a qcow2 image, whose size the image's maker chooses.
// What QEMU cannot read there is an error of the guest's disk. Missing data at the end of
// a truncated file reads as zeros. A fetch compares the length and the checksum, and a
// person puts a file in place by copying it.
func Probe(image io.ReaderAt, length int64) (Info, error) {
	head := make([]byte, min(length, sector))
	if _, err := image.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return Info{}, err
	}
	if bytes.HasPrefix(head, []byte(magic)) {
		return probeQcow2(image, length)
	}
	for _, f := range otherFormats {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return Info{}, fmt.Errorf("it is %s: only raw and qcow2 images are taken", f.name)
		}
	}
	return probeRaw(image, length)
}

func probeRaw(image io.ReaderAt, length int64) (Info, error) {
	if length == 0 {
		return Info{}, errors.New("it is empty")
	}
	if !looksLikeDisk(image) {
		return Info{}, errors.New("it is not a disk image: it has neither a boot sector, nor a partition table, nor a known file system, and is not a qcow2 image")
	}
	if length%sector != 0 {
		return Info{}, fmt.Errorf("it is %d bytes long, which is not a multiple of %d: a raw image that was cut off", length, sector)
	}
	return Info{Format: Raw, Size: length}, nil
}

func looksLikeDisk(image io.ReaderAt) bool {
	for _, s := range signatures {
		found := make([]byte, len(s.magic))
		if n, _ := image.ReadAt(found, s.at); n == len(found) && string(found) == s.magic {
			return true
		}
	}
	return false
}

// header is the header of a qcow2 image, as in QEMU's docs/interop/qcow2.txt.
type header struct {
	Magic              [4]byte
	Version            uint32
	BackingFileOffset  uint64
	BackingFileSize    uint32
	ClusterBits        uint32
	Size               uint64
	CryptMethod        uint32
	L1Size             uint32
	L1TableOffset      uint64
	RefcountOffset     uint64
	RefcountClusters   uint32
	Snapshots          uint32
	SnapshotsOffset    uint64
	Incompatible       uint64 // from here on in version 3
	Compatible         uint64
	Autoclear          uint64
	RefcountOrder      uint32
	HeaderLength       uint32
	CompressionAndRest uint64
}

// Values in the header.
const (
	magic           = "QFI\xfb"
	featureCorrupt  = 1 << 1
	featureDataFile = 1 << 2
	featureWideL2   = 1 << 4
	knownFeatures   = 1<<5 - 1
	maxL1           = 32 << 20 // bytes, as in QEMU
	maxSize         = 1 << 56
)

func probeQcow2(image io.ReaderAt, length int64) (Info, error) {
	h, err := readHeader(image)
	if err != nil {
		return Info{}, err
	}
	switch {
	case h.BackingFileOffset != 0:
		return Info{}, errors.New("it is a qcow2 image with a backing file, which is refused: make one image of both by qemu-img convert")
	case !isInFile(h.L1TableOffset, h.requiredL1Entries()*8, length), !isInFile(h.RefcountOffset, int64(h.RefcountClusters)*h.clusterSize(), length):
		return Info{}, errors.New("it is a qcow2 image that was cut off")
	}
	return Info{Format: Qcow2, Size: int64(h.Size)}, nil //nolint:gosec // at most maxSize
}

// CheckDisk refuses a machine's disk that is not one which CreateQcow2 makes, or that
// points to another file. It may name a backing file, since QEMU gets that explicitly.
func CheckDisk(disk io.ReaderAt) error {
	_, err := readHeader(disk)
	return err
}

// IsUnwritten reports whether a disk is as CreateQcow2 made it. QEMU puts all that is
// written to it behind the table that it ends with.
func IsUnwritten(disk io.ReaderAt, length int64) bool {
	h, err := readHeader(disk)
	if err != nil {
		return false
	}
	table := (int64(h.L1Size)*8 + h.clusterSize() - 1) / h.clusterSize() * h.clusterSize()
	return length == int64(h.L1TableOffset)+table //nolint:gosec // of a file that was opened
}

func readHeader(image io.ReaderAt) (header, error) {
	var h header
	if err := binary.Read(io.NewSectionReader(image, 0, int64(binary.Size(h))), binary.BigEndian, &h); err != nil {
		return h, errors.New("it is a qcow2 image that was cut off in its header")
	}
	if h.Version < 3 {
		h.Incompatible = 0
	}
	return h, h.validateFields()
}

func (h header) validateFields() error {
	switch {
	case string(h.Magic[:]) != magic:
		return errors.New("it is not a qcow2 image")
	case h.Version != 2 && h.Version != 3:
		return fmt.Errorf("it is a qcow2 image of version %d: only 2 and 3 are taken", h.Version)
	case h.Incompatible&featureDataFile != 0:
		return errors.New("it is a qcow2 image with a data file, which is refused: make one image of both by qemu-img convert")
	case h.CryptMethod != 0:
		return errors.New("it is an encrypted qcow2 image, which is refused")
	case h.Incompatible&featureCorrupt != 0:
		return errors.New("it is a qcow2 image that is marked as corrupt: repair it by qemu-img check -r all")
	case h.Incompatible&^knownFeatures != 0:
		return fmt.Errorf("it is a qcow2 image with the unknown features %#x", h.Incompatible&^knownFeatures)
	case h.ClusterBits < 9 || h.ClusterBits > 21, h.Size == 0, h.Size > maxSize, h.Size%sector != 0, uint64(h.L1Size)*8 > maxL1, h.requiredL1Entries() > int64(h.L1Size), h.L1TableOffset%uint64(h.clusterSize()) != 0: //nolint:gosec // not negative
		return errors.New("it is a qcow2 image with a header that makes no sense")
	}
	return nil
}

func (h header) clusterSize() int64 { return int64(1) << h.ClusterBits }

// requiredL1Entries returns how many entries of the L1 table the disk needs.
func (h header) requiredL1Entries() int64 {
	width := int64(8) // of an entry of an L2 table
	if h.Incompatible&featureWideL2 != 0 {
		width = 16
	}
	covers := h.clusterSize() / width * h.clusterSize()
	return (int64(h.Size) + covers - 1) / covers //nolint:gosec // at most maxSize
}

// isInFile reports whether a table is in the file; an offset of zero means no table.
func isInFile(offset uint64, size, length int64) bool {
	return offset == 0 || (offset < uint64(length) && size <= length-int64(offset)) //nolint:gosec // below length
}
