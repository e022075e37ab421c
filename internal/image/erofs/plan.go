// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package erofs

import (
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"
)

// slotSize is the unit of the numbers of inodes. firstInode is the place of the first one: no
// inode has the number 0, which older programs take for a removed file.
const (
	slotSize   = 32
	firstInode = inodeSize
)

// plan has the place of everything in a file system: the superblock, the data, the blocks of
// content (of folders, and of links that are long), and the inodes.
type plan struct {
	nodes []node
	// contentStart, metaStart and end are offsets in the file.
	contentStart, metaStart, end int64
}

// node is an inode of a plan.
type node struct {
	*Inode

	parent *Inode
	// names has the names in a folder, . and .. included, in their order.
	names []string
	// blocks is the number of blocks of content outside of the inode, from start on, and tail
	// the number of bytes that follow the inode.
	blocks int64
	start  int64
	tail   int
	offset int64 // of the inode, from metaStart on
}

// planTree checks a tree and lists its inodes, each folder's together.
func planTree(root *Inode) (*plan, error) {
	if !root.IsDir() {
		return nil, fmt.Errorf("the root has the mode %#o: it must be a folder", root.Mode)
	}
	p := &plan{}
	root.links = 2
	if err := p.add(root, root); err != nil {
		return nil, fmt.Errorf("the root folder: %w", err)
	}
	for at := 0; at < len(p.nodes); at++ { // the loop adds nodes
		if err := p.addChildren(p.nodes[at]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add adds an inode that has not been added yet.
func (p *plan) add(i, parent *Inode) error {
	if err := i.Check(); err != nil {
		return err
	}
	n := node{Inode: i, parent: parent}
	if i.IsDir() {
		n.names = append(slices.Collect(maps.Keys(i.Children)), ".", "..")
		slices.Sort(n.names)
	}
	n.split()
	p.nodes = append(p.nodes, n)
	return nil
}

func (p *plan) addChildren(folder node) error {
	for _, name := range folder.names {
		child := folder.Children[name]
		if child == nil {
			continue // . or ..
		}
		if !IsName(name) {
			return fmt.Errorf("a file has the name %.300q, which a file cannot have", name)
		}
		child.links++
		switch {
		case child.IsDir() && child.links > 1:
			return fmt.Errorf("the folder %q has more than one name", name)
		case child.IsDir():
			child.links = 2
			folder.links++
		case child.links > 1:
			continue
		}
		if err := p.add(child, folder.Inode); err != nil {
			return fmt.Errorf("the file %q: %w", name, err)
		}
	}
	return nil
}

// split divides the content of a folder or link: its end follows the inode if both fit into
// one block, and the rest gets separate blocks.
func (n *node) split() {
	size := n.contentSize()
	blocks, tail := size/BlockSize, int(size%BlockSize)
	if inodeSize+XattrsSize(n.Xattrs)+tail > BlockSize {
		blocks, tail = blocks+1, 0
	}
	n.blocks, n.tail = blocks, tail
}

// contentSize returns the size of the content of a folder or link in the metadata.
func (n *node) contentSize() int64 {
	switch n.Type() {
	case unix.S_IFDIR:
		return folderSize(n.names)
	case unix.S_IFLNK:
		return int64(len(n.Target))
	}
	return 0
}

// size returns how many bytes the inode has in stat(2).
func (n *node) size() int64 {
	if n.Type() == unix.S_IFREG {
		return n.Data.Size
	}
	return n.contentSize()
}

// placeNodes determines the place of everything behind the data.
func (p *plan) placeNodes(dataEnd int64) {
	p.contentStart = dataEnd
	at := dataEnd
	for k := range p.nodes {
		p.nodes[k].start = at
		at += p.nodes[k].blocks * BlockSize
	}
	p.metaStart = at
	offset := int64(firstInode)
	for k := range p.nodes {
		n := &p.nodes[k]
		whole := int64(inodeSize + XattrsSize(n.Xattrs) + n.tail)
		if left := BlockSize - offset%BlockSize; n.tail > 0 && whole > left {
			offset += left // Linux takes no tail that lies in two blocks
		}
		n.offset = offset
		n.nid = uint64(offset / slotSize)
		offset = roundUp(offset+whole, inodeSize)
	}
	p.end = roundUp(p.metaStart+offset, BlockSize)
}

// liveData returns the data of all inodes in the order of its blocks.
func (p *plan) liveData() []Data {
	var all []Data
	for _, n := range p.nodes {
		if n.Type() == unix.S_IFREG && n.Data.Size > 0 {
			all = append(all, n.Data)
		}
	}
	slices.SortFunc(all, func(a, b Data) int { return int(int64(a.block) - int64(b.block)) })
	return all
}

func roundUp[T int | int64](n, to T) T { return (n + to - 1) / to * to }
