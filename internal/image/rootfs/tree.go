// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/erofs"
)

const (
	// maxDepth is how many folders may be in each other.
	maxDepth = 512
	// maxLinks is how many symbolic links a path may lead through, as in Linux.
	maxLinks = 40
	// maxSteps is how much is done to follow the paths of all entries of an image: links that
	// lead through links cost much and take little.
	maxSteps = 50_000_000
)

// tree is the tree that the layers have made so far.
type tree struct {
	root  *erofs.Inode
	files int // that were made without an entry
	steps int
}

func newTree() *tree { return &tree{root: newFolder()} }

// newFolder returns a folder that no entry describes.
func newFolder() *erofs.Inode {
	return &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: map[string]*erofs.Inode{}}
}

// mergeLayer puts a layer on top of the tree. What the layer removes and hides is only in layers
// below, wherever that stands in the layer, so that comes first.
func (t *tree) mergeLayer(entries []entry) error {
	for k := range entries {
		if err := t.removeEntry(&entries[k]); err != nil {
			return err
		}
	}
	for k := range entries {
		if err := t.putEntry(&entries[k]); err != nil {
			return err
		}
	}
	return nil
}

// removeEntry removes what an entry of the next layer says. It may not be there.
func (t *tree) removeEntry(e *entry) error {
	switch {
	case e.isOpaque:
		folder, err := t.findPlace(e.path, false)
		if err == nil && folder != nil {
			clear(folder.inode().Children)
		}
		return err
	case e.isWhiteout:
		parent, base := path.Split(e.path)
		folder, err := t.findPlace(parent, false)
		if err == nil && folder != nil {
			delete(folder.inode().Children, base)
		}
		return err
	}
	return nil
}

// putEntry puts the file of an entry into its place.
func (t *tree) putEntry(e *entry) error {
	switch {
	case e.isOpaque || e.isWhiteout:
		return nil
	case e.path == "" && e.inode != nil:
		e.inode.Children = t.root.Children
		t.root = e.inode
		return nil
	case e.path == "":
		return newContentError("an entry makes the root a link to %s", quoteName(*e.link))
	}
	parent, base := path.Split(e.path)
	folder, err := t.findPlace(parent, true)
	if err != nil {
		return err
	}
	if len(folder) >= maxDepth {
		return newContentError("the file %s is in more than %d folders", quoteName(e.path), maxDepth)
	}
	file := e.inode
	if e.link != nil {
		if file, err = t.findTwin(e); err != nil {
			return err
		}
	}
	children := folder.inode().Children
	if file.IsDir() {
		file.Children = map[string]*erofs.Inode{}
		if old := children[base]; old != nil && old.IsDir() {
			file.Children = old.Children
		}
	}
	children[base] = file
	return nil
}

// findTwin returns the file that an entry is a further name of.
func (t *tree) findTwin(e *entry) (*erofs.Inode, error) {
	parent, base := path.Split(*e.link)
	folder, err := t.findPlace(parent, false)
	if err != nil {
		return nil, err
	}
	var file *erofs.Inode
	if folder != nil {
		file = folder.inode().Children[base]
	}
	if file == nil || file.IsDir() {
		return nil, newContentError("the entry %s is a further name of %s, which is not a file of its layer or those below", quoteName(e.path), quoteName(*e.link))
	}
	return file, nil
}

// place is a folder and all that it is in, the root first.
type place []*erofs.Inode

func (p place) inode() *erofs.Inode { return p[len(p)-1] }

// findPlace follows a path through folders and symbolic links to a folder. No path leads out of
// the root. With makeMissing, folders that are missing are made, and other files replaced
// by them; without, nil means that there is none.
func (t *tree) findPlace(text string, makeMissing bool) (place, error) {
	at, links := place{t.root}, 0
	rest := splitPath(text)
	for len(rest) > 0 {
		if t.steps++; t.steps > maxSteps {
			return nil, newContentError("the paths of the files lead through too many symbolic links")
		}
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			at = at[:max(1, len(at)-1)]
			continue
		}
		next := at.inode().Children[name]
		if next != nil && next.Type() == unix.S_IFLNK {
			if links++; links > maxLinks {
				return nil, newContentError("the path %s leads through more than %d symbolic links", quoteName(text), maxLinks)
			}
			if strings.HasPrefix(next.Target, "/") {
				at = at[:1]
			}
			t.steps += len(next.Target) + len(rest)
			rest = append(splitPath(next.Target), rest...)
			continue
		}
		if next == nil || !next.IsDir() {
			if !makeMissing {
				return nil, nil
			}
			var err error
			if next, err = t.makeFolder(at, name, text); err != nil {
				return nil, err
			}
		}
		at = append(at, next)
	}
	return at, nil
}

// makeFolder makes a folder on a path.
func (t *tree) makeFolder(in place, name, text string) (*erofs.Inode, error) {
	if len(in) >= maxDepth {
		return nil, newContentError("the path %s leads through more than %d folders", quoteName(text), maxDepth)
	}
	if !erofs.IsName(name) {
		return nil, newContentError("the path %s leads through a link with a name that no file can have", quoteName(text))
	}
	if t.files++; t.files > MaxFiles {
		return nil, newContentError("the paths of the files have more than %d folders without entries", MaxFiles)
	}
	folder := newFolder()
	in.inode().Children[name] = folder
	return folder, nil
}

// splitPath returns the names of a path, without those that lead nowhere.
func splitPath(text string) []string {
	var names []string
	for name := range strings.SplitSeq(text, "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names
}

// findDisk returns the disk of a virtual machine, if the image has nothing but that: one file
// in the folder of disks.
func (t *tree) findDisk() *Range {
	folder := t.root.Children[DiskFolder]
	if len(t.root.Children) != 1 || folder == nil || !folder.IsDir() {
		return nil
	}
	var found *Range
	for name, file := range folder.Children {
		if strings.HasPrefix(name, ".") || file.Type() != unix.S_IFREG {
			continue
		}
		if found != nil {
			return nil
		}
		found = &Range{file.Data.Offset(), file.Data.Size}
	}
	return found
}

// DiskFolder is the folder of the disk in an image for machines, as in container disks.
const DiskFolder = "disk"
