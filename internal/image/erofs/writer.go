// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package erofs writes file systems in the format EROFS of Linux, uncompressed and without
// any feature that Linux 6.1 lacks. The same input gives the same bytes.
//
// Start with New. Writer.Append writes the data of files as it arrives, and Writer.Finish
// writes the metadata behind it: the tree of inodes (inode.go) gets its places (plan.go), and
// is then encoded (encode.go). Data is written once and never read again.
package erofs

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math"

	"cloudnative.tw/drover/internal/image/diskimage"
)

// BlockSize is the size of the blocks of a file system, whose size is a multiple of it.
const BlockSize = 4096

// bufferSize is how much is written to the file at once.
const bufferSize = 1 << 20

// maxSize is how large a file system can be, whose blocks have 32-bit numbers.
const maxSize = (math.MaxUint32 - 1) * BlockSize

// ErrTooLarge means that the file system would have more bytes than its limit.
var ErrTooLarge = errors.New("too large")

// File is the file that a file system is written to. It is empty at first.
type File interface {
	io.WriterAt
	// Truncate sets the size of the file.
	Truncate(size int64) error
	// Clear fills a part of the file with zeros, which take no space if possible.
	Clear(at, size int64) error
}

// Writer writes one file system to a file.
type Writer struct {
	file   File
	sparse diskimage.SparseWriter
	buffer *bufio.Writer // to sparse
	length int64         // written so far, the buffer included
	limit  int64
}

// New returns a writer of a file system to an empty file, which gets at most limit bytes.
// Blocks of zeros are holes in it.
func New(file File, limit int64) *Writer {
	w := &Writer{file: file, sparse: diskimage.SparseWriter{To: file}, limit: min(limit, maxSize)}
	w.buffer = bufio.NewWriterSize(&w.sparse, bufferSize)
	return w
}

// Data says where the data of a file is. The zero value stands for an empty file.
type Data struct {
	block uint32
	// Size is how many bytes the file has.
	Size int64
}

// Offset returns where the data begins in the file system: it is in one piece.
func (d Data) Offset() int64 { return int64(d.block) * BlockSize }

// end returns where the blocks of the data end.
func (d Data) end() int64 { return d.Offset() + roundUp(d.Size, BlockSize) }

// Append writes the data of a file.
func (w *Writer) Append(content io.Reader) (Data, error) {
	start := max(w.length, BlockSize) // the superblock comes last
	if err := w.padTo(start); err != nil {
		return Data{}, err
	}
	n, err := io.Copy(w.buffer, io.LimitReader(content, w.limit-start+1))
	w.length += n
	if err == nil && w.length > w.limit {
		err = fmt.Errorf("%w: it has more than %d bytes", ErrTooLarge, w.limit)
	}
	if err == nil {
		err = w.padTo(roundUp(w.length, BlockSize))
	}
	if err != nil || n == 0 {
		return Data{}, err
	}
	return Data{block: uint32(start / BlockSize), Size: n}, nil //nolint:gosec // as maxSize says
}

// Finish writes the metadata of the tree and returns the size of the file system. Data that no
// inode of the tree uses is removed: its blocks are zeros and take no space. The UUID of the
// file system derives from seed, which identifies the source of the tree, such as a digest.
func (w *Writer) Finish(root *Inode, seed string) (size int64, err error) {
	p, err := planTree(root)
	if err != nil {
		return 0, err
	}
	dataEnd := max(w.length, BlockSize)
	p.placeNodes(dataEnd)
	if p.end > w.limit {
		return 0, fmt.Errorf("%w: it has %d bytes, and may have %d", ErrTooLarge, p.end, w.limit)
	}
	if err := w.writeMetadata(p); err != nil {
		return 0, err
	}
	if err := w.removeDead(p, dataEnd); err != nil {
		return 0, err
	}
	_, err = w.file.WriteAt(p.encodeSuperblock(makeUUID(seed)), superOffset)
	return p.end, err
}

// writeMetadata writes everything that follows the data, and sets the file's size.
func (w *Writer) writeMetadata(p *plan) error {
	for k := range p.nodes {
		if err := w.writeBlocks(&p.nodes[k]); err != nil {
			return err
		}
	}
	for k := range p.nodes {
		if err := w.writeInode(p, k); err != nil {
			return err
		}
	}
	if err := w.padTo(p.end); err != nil {
		return err
	}
	if err := w.buffer.Flush(); err != nil {
		return err
	}
	return w.file.Truncate(w.sparse.Length) // its end may be a hole
}

// writeBlocks writes the separate blocks with content of a folder or link.
func (w *Writer) writeBlocks(n *node) error {
	rest := n.names
	for k := range n.blocks {
		content := []byte(n.Target)
		if n.IsDir() {
			count, size := nextBlock(rest)
			content, rest = n.encodeBlock(rest[:count], size), rest[count:]
		}
		if err := w.writeAt(n.start+k*BlockSize, content); err != nil {
			return err
		}
	}
	return nil
}

// writeInode writes an inode and the end of its content.
func (w *Writer) writeInode(p *plan, number int) error {
	n := &p.nodes[number]
	b := n.encodeInode(number)
	switch {
	case n.tail == 0:
	case n.IsDir():
		rest := n.names
		for range n.blocks {
			count, _ := nextBlock(rest)
			rest = rest[count:]
		}
		b = append(b, n.encodeBlock(rest, n.tail)...)
	default:
		b = append(b, n.Target...)
	}
	return w.writeAt(p.metaStart+n.offset, b)
}

// removeDead removes data that no inode uses.
func (w *Writer) removeDead(p *plan, dataEnd int64) error {
	at := int64(BlockSize)
	for _, live := range append(p.liveData(), Data{block: uint32(dataEnd / BlockSize)}) { //nolint:gosec // as maxSize says
		if live.Offset() > at {
			if err := w.file.Clear(at, live.Offset()-at); err != nil {
				return err
			}
		}
		at = max(at, live.end())
	}
	return nil
}

// writeAt writes at an offset. Nothing may have been written behind it yet.
func (w *Writer) writeAt(offset int64, content []byte) error {
	if err := w.padTo(offset); err != nil {
		return err
	}
	n, err := w.buffer.Write(content)
	w.length += int64(n)
	return err
}

// padTo writes zeros up to an offset.
func (w *Writer) padTo(offset int64) error {
	for w.length < offset {
		n, err := w.buffer.Write(zeroBlock[:min(offset-w.length, BlockSize)])
		w.length += int64(n)
		if err != nil {
			return err
		}
	}
	return nil
}

var zeroBlock [BlockSize]byte

// makeUUID returns a UUID of version 8, whose bits its maker chooses.
func makeUUID(seed string) (uuid [16]byte) {
	sum := sha256.Sum256([]byte("erofs " + seed))
	copy(uuid[:], sum[:])
	uuid[6] = uuid[6]&0x0f | 0x80
	uuid[8] = uuid[8]&0x3f | 0x80
	return uuid
}
