// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"errors"
	"maps"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/erofs"
)

const (
	// maxDepth is how deep folders may be nested.
	maxDepth = 512
	// maxLinks is how many symbolic links a path may lead through, as in Linux.
	maxLinks = 40
	// maxSteps bounds the steps to follow the paths of all entries of an image, and to check extended
	// attributes. A small image may cause many steps, with links that lead through links, or with hard
	// links to files with many attributes.
	maxSteps = 50_000_000
)

// tree is the file tree of one layer, or of several merged layers.
type tree struct {
	root *erofs.Inode
	// marks are the marks of the layer's folders.
	marks map[*erofs.Inode]*marks
	count *count
}

// marks says how a folder of a layer is merged with the same folder of the layers below.
type marks struct {
	// isImplied is set if the layer lacks an entry for the folder. The folder then keeps its attributes.
	isImplied bool
	// isOpaque hides all files of the layers below. removed are the names of removed files.
	isOpaque bool
	removed  []string
}

// count has the totals of all layers that are bounded.
type count struct {
	files int // made without an entry
	steps int
}

// newTree returns the tree of a layer without entries.
func newTree(c *count) *tree {
	t := &tree{marks: map[*erofs.Inode]*marks{}, count: c}
	t.root = t.newFolder()
	return t
}

// newFolder returns a folder without an entry.
func (t *tree) newFolder() *erofs.Inode {
	folder := &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: map[string]*erofs.Inode{}}
	t.marks[folder] = &marks{isImplied: true}
	return folder
}

// mergeLayer puts a layer on top of the tree. Container engines unpack each layer into a separate
// folder, and mount these folders over each other. Therefore a path in a layer follows only links
// of the same layer.
func (t *tree) mergeLayer(entries []entry) error {
	upper := newTree(t.count)
	for k := range entries {
		if err := upper.putEntry(&entries[k], t); err != nil {
			return err
		}
	}
	upper.mergeFolder(t.root, upper.root)
	t.root = upper.root
	return nil
}

// mergeFolder adds the files of the same folder in the layers below.
func (t *tree) mergeFolder(below, folder *erofs.Inode) {
	merged, own := below.Children, folder.Children
	if m := t.marks[folder]; m != nil {
		if m.isImplied {
			*folder = *below
		}
		if m.isOpaque {
			merged = map[string]*erofs.Inode{}
		}
		for _, name := range m.removed {
			delete(merged, name)
		}
	}
	for name, file := range own {
		if old := merged[name]; old != nil && old.IsDir() && file.IsDir() {
			t.mergeFolder(old, file)
		}
		merged[name] = file
	}
	folder.Children = merged
}

// putEntry adds the file of an entry to the tree. An entry may be a hard link to a file of the
// layers below.
func (t *tree) putEntry(e *entry, below *tree) error {
	switch {
	case e.isOpaque || e.isWhiteout:
		return t.markFolder(e)
	case e.path == "" && e.link != nil:
		return newContentError("an entry makes the root a link to %s", quoteName(*e.link))
	case e.path == "":
		t.describeFolder(t.root, e.inode)
		return nil
	}
	parent, base := path.Split(e.path)
	folder, err := t.findFolder(parent, true)
	if err != nil {
		return err
	}
	if len(folder) >= maxDepth {
		return newContentError("the file %s is in more than %d folders", quoteName(e.path), maxDepth)
	}
	file := e.inode
	if e.link != nil {
		if file, err = t.findLinked(e, below); err != nil {
			return err
		}
		if err := t.updateLinked(file, e.inode); err != nil {
			return newContentError("the file %s: %w", quoteName(e.path), err)
		}
	}
	children := folder.inode().Children
	if old := children[base]; old != nil && old.IsDir() && file.IsDir() {
		t.describeFolder(old, file)
		return nil
	}
	if file.IsDir() {
		file.Children = map[string]*erofs.Inode{}
	}
	children[base] = file
	return nil
}

// describeFolder sets the attributes of a folder from its entry, and keeps its files.
func (t *tree) describeFolder(folder, described *erofs.Inode) {
	children := folder.Children
	*folder = *described
	folder.Children = children
	if m := t.marks[folder]; m != nil {
		m.isImplied = false
	}
}

// updateLinked sets the attributes of a file from the entry of a hard link to it, as container engines
// do. Usually both entries have the same attributes.
func (t *tree) updateLinked(file, described *erofs.Inode) error {
	file.UID, file.GID = described.UID, described.GID
	if file.Type() != unix.S_IFLNK {
		file.Mode = file.Type() | described.Mode&^unix.S_IFMT
		file.Seconds, file.Nanoseconds = described.Seconds, described.Nanoseconds
	}
	if len(described.Xattrs) == 0 {
		return nil
	}
	if file.Xattrs == nil {
		file.Xattrs = map[string]string{}
	}
	maps.Copy(file.Xattrs, described.Xattrs)
	// Check below costs one step for each attribute, and again for each hard link.
	if t.count.steps += len(file.Xattrs); t.count.steps > maxSteps {
		return errors.New("the files have too many hard links with extended attributes")
	}
	return file.Check()
}

// markFolder adds the mark of a whiteout or an opaque entry to its folder.
func (t *tree) markFolder(e *entry) error {
	text, base := e.path, ""
	if e.isWhiteout {
		text, base = path.Split(e.path)
	}
	folder, err := t.findFolder(text, true)
	if err != nil {
		return err
	}
	m := t.marks[folder.inode()]
	if m == nil {
		m = &marks{}
		t.marks[folder.inode()] = m
	}
	if m.isOpaque = m.isOpaque || e.isOpaque; e.isWhiteout {
		m.removed = append(m.removed, base)
	}
	return nil
}

// findLinked returns the file to which an entry is a hard link. It searches the entry's layer first,
// then the layers below.
func (t *tree) findLinked(e *entry, below *tree) (*erofs.Inode, error) {
	file, err := t.findFile(*e.link)
	if err == nil && file == nil {
		file, err = below.findFile(*e.link)
	}
	if err != nil {
		return nil, err
	}
	if file == nil || file.IsDir() {
		return nil, newContentError("the entry %s is a hard link to %s, which is not a file of its layer or of the layers below", quoteName(e.path), quoteName(*e.link))
	}
	return file, nil
}

// findFile returns the file at a path, or nil.
func (t *tree) findFile(text string) (*erofs.Inode, error) {
	parent, base := path.Split(text)
	folder, err := t.findFolder(parent, false)
	if err != nil || folder == nil {
		return nil, err
	}
	return folder.inode().Children[base], nil
}

// folderPath is a folder with all its parents, the root first.
type folderPath []*erofs.Inode

func (p folderPath) inode() *erofs.Inode { return p[len(p)-1] }

// findFolder follows a path through folders and symbolic links to a folder. No path leads out of
// the root. With makeMissing it makes missing folders, also in place of other files. Otherwise
// it returns nil if the folder does not exist.
func (t *tree) findFolder(text string, makeMissing bool) (folderPath, error) {
	current, links := folderPath{t.root}, 0
	rest := splitPath(text)
	for len(rest) > 0 {
		if t.count.steps++; t.count.steps > maxSteps {
			return nil, newContentError("the paths of the files lead through too many symbolic links")
		}
		name := rest[0]
		rest = rest[1:]
		if name == ".." {
			current = current[:max(1, len(current)-1)]
			continue
		}
		next := current.inode().Children[name]
		if next != nil && next.Type() == unix.S_IFLNK {
			if links++; links > maxLinks {
				return nil, newContentError("the path %s leads through more than %d symbolic links", quoteName(text), maxLinks)
			}
			if strings.HasPrefix(next.Target, "/") {
				current = current[:1]
			}
			t.count.steps += len(next.Target) + len(rest)
			rest = append(splitPath(next.Target), rest...)
			continue
		}
		if next == nil || !next.IsDir() {
			if !makeMissing {
				return nil, nil
			}
			var err error
			if next, err = t.makeFolder(current, name, text); err != nil {
				return nil, err
			}
		}
		current = append(current, next)
	}
	return current, nil
}

// makeFolder makes a folder with a name in parent. text is the whole path, for errors.
func (t *tree) makeFolder(parent folderPath, name, text string) (*erofs.Inode, error) {
	if len(parent) >= maxDepth {
		return nil, newContentError("the path %s leads through more than %d folders", quoteName(text), maxDepth)
	}
	if !erofs.IsName(name) {
		return nil, newContentError("the path %s leads through a link with a name that no file can have", quoteName(text))
	}
	if t.count.files++; t.count.files > MaxFiles {
		return nil, newContentError("the paths of the files have more than %d folders without entries", MaxFiles)
	}
	folder := t.newFolder()
	parent.inode().Children[name] = folder
	return folder, nil
}

// splitPath returns the names in a path, without empty names and dots.
func splitPath(text string) []string {
	var names []string
	for name := range strings.SplitSeq(text, "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names
}

// findDisk returns the disk of a container disk: the only file in DiskFolder, if the image has
// no other folder. It returns nil for other images.
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

// DiskFolder is the folder with the disk in a container disk.
const DiskFolder = "disk"
