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
	// maxDepth is how many folders may be in each other.
	maxDepth = 512
	// maxLinks is how many symbolic links a path may lead through, as in Linux.
	maxLinks = 40
	// maxSteps is how many steps it may take to follow the paths of all entries of an image, and to
	// check attributes: links that lead through links, and links to files with many attributes, cost much
	// and take few bytes.
	maxSteps = 50_000_000
)

// tree is the tree of one layer, or the one that several layers have made together.
type tree struct {
	root *erofs.Inode
	// marks are the marks of the layer's folders.
	marks map[*erofs.Inode]*marks
	count *count
}

// marks tell how a folder of a layer is merged with the folder below it.
type marks struct {
	// isImplied says that no entry describes the folder, so it is as it is below.
	isImplied bool
	// isOpaque hides all files below, and removed are the names of those that are removed.
	isOpaque bool
	removed  []string
}

// count counts what the layers of an image may have in all.
type count struct {
	files int // that were made without an entry
	steps int
}

// newTree returns the tree of a layer without entries.
func newTree(c *count) *tree {
	t := &tree{marks: map[*erofs.Inode]*marks{}, count: c}
	t.root = t.newFolder()
	return t
}

// newFolder returns a folder that no entry describes.
func (t *tree) newFolder() *erofs.Inode {
	folder := &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: map[string]*erofs.Inode{}}
	t.marks[folder] = &marks{isImplied: true}
	return folder
}

// mergeLayer puts a layer on top of the tree, as container engines do: they unpack each layer into
// a separate folder, and mount these folders over each other. So a path of a layer leads through
// links of the same layer only.
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

// mergeFolder adds to a folder of the tree what layers below have in its place.
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

// putEntry puts the file of an entry into its place. It may be a further name of a file of the
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
	folder, err := t.findPlace(parent, true)
	if err != nil {
		return err
	}
	if len(folder) >= maxDepth {
		return newContentError("the file %s is in more than %d folders", quoteName(e.path), maxDepth)
	}
	file := e.inode
	if e.link != nil {
		if file, err = t.findTwin(e, below); err != nil {
			return err
		}
		if err := t.describeTwin(file, e.inode); err != nil {
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

// describeFolder makes a folder as an entry describes it, with the files that it has.
func (t *tree) describeFolder(folder, described *erofs.Inode) {
	children := folder.Children
	*folder = *described
	folder.Children = children
	if m := t.marks[folder]; m != nil {
		m.isImplied = false
	}
}

// describeTwin gives a file the attributes that the entry of a further name states, as container
// engines do. Builders state the same ones.
func (t *tree) describeTwin(file, described *erofs.Inode) error {
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
	// All attributes are checked again for each name.
	if t.count.steps += len(file.Xattrs); t.count.steps > maxSteps {
		return errors.New("the files have too many further names with extended attributes")
	}
	return file.Check()
}

// markFolder notes what an entry removes or hides of layers below.
func (t *tree) markFolder(e *entry) error {
	text, base := e.path, ""
	if e.isWhiteout {
		text, base = path.Split(e.path)
	}
	folder, err := t.findPlace(text, true)
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

// findTwin returns the file of which an entry is a further name. It looks in the entry's layer first,
// then in those below.
func (t *tree) findTwin(e *entry, below *tree) (*erofs.Inode, error) {
	file, err := t.findFile(*e.link)
	if err == nil && file == nil {
		file, err = below.findFile(*e.link)
	}
	if err != nil {
		return nil, err
	}
	if file == nil || file.IsDir() {
		return nil, newContentError("the entry %s is a further name of %s, which is not a file of its layer or those below", quoteName(e.path), quoteName(*e.link))
	}
	return file, nil
}

// findFile returns the file at a path, or nil.
func (t *tree) findFile(text string) (*erofs.Inode, error) {
	parent, base := path.Split(text)
	folder, err := t.findPlace(parent, false)
	if err != nil || folder == nil {
		return nil, err
	}
	return folder.inode().Children[base], nil
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
		if t.count.steps++; t.count.steps > maxSteps {
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
			t.count.steps += len(next.Target) + len(rest)
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
	if t.count.files++; t.count.files > MaxFiles {
		return nil, newContentError("the paths of the files have more than %d folders without entries", MaxFiles)
	}
	folder := t.newFolder()
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
