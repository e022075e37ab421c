// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package erofs

import (
	"encoding/binary"
	"hash/crc32"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// Sizes and numbers of the format: Documentation/filesystems/erofs.rst and
// fs/erofs/erofs_fs.h of Linux.
const (
	superOffset = 1024
	superMagic  = 0xe0f5e1e2
	// superFeatures are features that older versions of Linux may ignore: the checksum of the
	// superblock, and times that tell when content changed.
	superFeatures = 1 | 2
	blockBits     = 12

	inodeSize      = 64
	extendedInode  = 1      // the form with 64 bytes
	layoutPlain    = 0 << 1 // all content in blocks
	layoutInline   = 2 << 1 // the end of the content behind the inode
	folderEntry    = 12
	xattrAlign     = 4
	xattrEntrySize = 4
	// xattrHeaderSize is the size of the header before the attributes of an inode.
	xattrHeaderSize = 12
)

var order = binary.LittleEndian

// encodeSuperblock returns the end of the first block, from superOffset on.
func (p *plan) encodeSuperblock(uuid [16]byte) []byte {
	b := make([]byte, BlockSize-superOffset)
	order.PutUint32(b, superMagic)
	order.PutUint32(b[8:], superFeatures)
	b[12] = blockBits
	order.PutUint16(b[14:], uint16(p.nodes[0].nid)) //nolint:gosec // the first
	order.PutUint64(b[16:], uint64(len(p.nodes)))
	order.PutUint32(b[36:], uint32(p.end/BlockSize))       //nolint:gosec // as maxSize says
	order.PutUint32(b[40:], uint32(p.metaStart/BlockSize)) //nolint:gosec // as maxSize says
	copy(b[48:], uuid[:])
	// Linux does not invert the sum at its end.
	order.PutUint32(b[4:], ^crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// encodeInode returns an inode with its attributes. number is its position among all inodes.
func (n *node) encodeInode(number int) []byte {
	xattrs := encodeXattrs(n.Xattrs)
	b := make([]byte, inodeSize, inodeSize+len(xattrs)+n.tail)
	format := extendedInode | layoutPlain
	if n.tail > 0 {
		format = extendedInode | layoutInline
	}
	order.PutUint16(b, uint16(format))
	if len(xattrs) > 0 {
		order.PutUint16(b[2:], uint16((len(xattrs)-xattrHeaderSize)/xattrAlign+1)) //nolint:gosec // as MaxXattrs says
	}
	order.PutUint16(b[4:], uint16(n.Mode))   //nolint:gosec // was checked
	order.PutUint64(b[8:], uint64(n.size())) //nolint:gosec // positive
	order.PutUint32(b[16:], n.placement())
	order.PutUint32(b[20:], uint32(number+1)) //nolint:gosec // positive
	order.PutUint32(b[24:], n.UID)
	order.PutUint32(b[28:], n.GID)
	order.PutUint64(b[32:], uint64(n.Seconds)) //nolint:gosec // Linux reads it with its sign
	order.PutUint32(b[40:], n.Nanoseconds)
	order.PutUint32(b[44:], n.links)
	return append(b, xattrs...)
}

// placement returns the number of the inode's first block, or of its device.
func (n *node) placement() uint32 {
	switch n.Type() {
	case unix.S_IFREG:
		return n.Data.block
	case unix.S_IFCHR, unix.S_IFBLK:
		return n.Minor&0xff | n.Major<<8 | n.Minor&^0xff<<12
	}
	if n.blocks > 0 {
		return uint32(n.start / BlockSize) //nolint:gosec // as maxSize says
	}
	return 0
}

// encodeXattrs returns the attributes of an inode in the order of their names.
func encodeXattrs(xattrs map[string]string) []byte {
	if len(xattrs) == 0 {
		return nil
	}
	b := make([]byte, xattrHeaderSize, XattrsSize(xattrs))
	for _, name := range slices.Sorted(maps.Keys(xattrs)) {
		index, suffix, _ := splitXattr(name)
		value := xattrs[name]
		b = append(b, byte(len(suffix)), index)       //nolint:gosec // a name has at most 255
		b = order.AppendUint16(b, uint16(len(value))) //nolint:gosec // as MaxXattrs says
		b = append(append(b, suffix...), value...)
		b = append(b, make([]byte, roundUp(len(b), xattrAlign)-len(b))...)
	}
	return b
}

// nextBlock returns how many of the names fit into one block of a folder, and the bytes
// that they take there.
func nextBlock(names []string) (count, size int) {
	for _, name := range names {
		if size+folderEntry+len(name) > BlockSize {
			break
		}
		count, size = count+1, size+folderEntry+len(name)
	}
	return count, size
}

// folderSize returns the size of a folder: all blocks but the last one are whole.
func folderSize(names []string) int64 {
	var whole int64
	for {
		count, size := nextBlock(names)
		if count == len(names) {
			return whole + int64(size)
		}
		names, whole = names[count:], whole+BlockSize
	}
}

// encodeBlock returns a block of a folder: the entries, and then their names.
func (n *node) encodeBlock(names []string, size int) []byte {
	b, at := make([]byte, 0, size), len(names)*folderEntry
	for _, name := range names {
		target := n.lookup(name)
		b = order.AppendUint64(b, target.nid)
		b = order.AppendUint16(b, uint16(at)) //nolint:gosec // in a block
		b = append(b, fileTypes[target.Type()], 0)
		at += len(name)
	}
	for _, name := range names {
		b = append(b, name...)
	}
	return b
}

func (n *node) lookup(name string) *Inode {
	switch name {
	case ".":
		return n.Inode
	case "..":
		return n.parent
	}
	return n.Children[name]
}
