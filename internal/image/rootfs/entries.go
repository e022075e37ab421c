// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs

import (
	"archive/tar"
	"fmt"
	"io"
	"math"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/layer"
)

// Bounds for all layers of an image together.
const (
	// MaxFiles is how many entries the layers may have, and how many folders may be made without
	// an entry.
	MaxFiles = 1_000_000
	// maxMetadata is how many bytes the paths, link targets and extended attributes may have.
	maxMetadata = 256 << 20
	// maxPath is how many bytes a path may have.
	maxPath = 4096
)

// entry is an entry of a layer: a file, a hard link, or a mark that removes files.
type entry struct {
	// path is clean, without a leading slash. The path of the root is empty.
	path string
	// inode is the file. If link is set, the entry is a hard link to the file at the path link, and
	// inode has the new attributes of that file.
	inode *erofs.Inode
	link  *string
	// isWhiteout removes the file at path in the layers below. isOpaque removes all files in the
	// folder at path in the layers below.
	isWhiteout, isOpaque bool
}

// reader reads the layers of an image.
type reader struct {
	out      *erofs.Writer
	limits   *layer.Limits
	tree     *tree
	count    int
	metadata int
	entries  []entry // of the layer that is being read
}

// readLayer reads a layer, writes the data of its files, and merges it into the tree.
func (r *reader) readLayer(blob io.Reader) error {
	r.entries = r.entries[:0]
	if err := r.limits.ReadEntries(blob, r.readEntry); err != nil {
		return err
	}
	err := r.tree.mergeLayer(r.entries)
	clear(r.entries) // release the inodes, which a higher layer may remove
	return err
}

// readEntry checks an entry of a layer, writes its data, and adds it to entries.
func (r *reader) readEntry(header *tar.Header, content io.Reader) error {
	if header.Typeflag == tar.TypeXGlobalHeader {
		return nil
	}
	if r.count++; r.count > MaxFiles {
		return newContentError("the layers have more than %d entries", MaxFiles)
	}
	e, err := parseEntry(header)
	if err != nil || e == nil {
		return err
	}
	if e.link == nil && e.inode != nil && e.inode.Type() == unix.S_IFREG {
		if e.inode.Data, err = r.out.Append(content); err != nil {
			return fmt.Errorf("the file %s: %w", quoteName(e.path), err)
		}
	}
	r.metadata += len(e.path) + e.headerSize()
	if r.metadata > maxMetadata {
		return newContentError("names, links and attributes of the files have more than %d bytes", maxMetadata)
	}
	r.entries = append(r.entries, *e)
	return nil
}

// headerSize returns the size of an entry's link targets and extended attributes, in bytes.
func (e *entry) headerSize() int {
	size := 0
	if e.link != nil {
		size += len(*e.link)
	}
	if e.inode != nil {
		size += len(e.inode.Target) + erofs.XattrsSize(e.inode.Xattrs)
	}
	return size
}

// quoteName returns a quoted name of limited length, for messages.
func quoteName(name string) string { return fmt.Sprintf("%.200q", name) }

// cleanPath returns a path in the form of entry.path. It cannot lead out of the root.
func cleanPath(text string) string { return strings.TrimPrefix(path.Clean("/"+text), "/") }

// parseEntry returns an entry, nil for an entry to ignore.
func parseEntry(header *tar.Header) (*entry, error) {
	clean := cleanPath(header.Name)
	if err := checkPath(clean); err != nil {
		return nil, err
	}
	if strings.HasPrefix(clean, layer.Whiteout) || strings.Contains(clean, "/"+layer.Whiteout) {
		return parseWhiteout(clean)
	}
	var link *string
	if header.Typeflag == tar.TypeLink {
		target := cleanPath(header.Linkname)
		if err := checkPath(target); err != nil {
			return nil, err
		}
		link = &target
	}
	inode, err := parseInode(header)
	if err == nil && link == nil && clean == "" && !inode.IsDir() {
		err = newContentError("it is the root and must be a folder")
	}
	if err != nil {
		return nil, fmt.Errorf("the entry %s: %w", quoteName(clean), err)
	}
	return &entry{path: clean, inode: inode, link: link}, nil
}

func checkPath(clean string) error {
	if len(clean) > maxPath {
		return newContentError("the path %s has %d bytes: it may have %d", quoteName(clean), len(clean), maxPath)
	}
	for name := range strings.SplitSeq(clean, "/") {
		if clean != "" && !erofs.IsName(name) {
			return newContentError("the path %s has a name that no file can have: it may have %d bytes, none of them zero", quoteName(clean), erofs.MaxName)
		}
	}
	return nil
}

// parseWhiteout returns an entry that removes or hides files of the layers below. It ignores
// names with two prefixes, apart from layer.Opaque: they are notes of the file system AUFS.
func parseWhiteout(clean string) (*entry, error) {
	folder, base := path.Split(clean)
	folder = strings.TrimSuffix(folder, "/")
	name, isWhiteout := strings.CutPrefix(base, layer.Whiteout)
	inNotes := strings.HasPrefix(clean, layer.Whiteout+layer.Whiteout) || strings.Contains(clean, "/"+layer.Whiteout+layer.Whiteout)
	switch {
	case base == layer.Opaque:
		return &entry{path: folder, isOpaque: true}, nil
	case inNotes:
		return nil, nil //nolint:nilnil // The entry is ignored.
	case !isWhiteout || !erofs.IsName(name) || strings.HasPrefix(folder, layer.Whiteout) || strings.Contains(folder, "/"+layer.Whiteout):
		return nil, newContentError("the entry %s has the prefix %s where no file can be removed by it", quoteName(clean), layer.Whiteout)
	}
	return &entry{path: path.Join(folder, name), isWhiteout: true}, nil
}

// fileTypes are the types of files in archives, as modes.
var fileTypes = map[byte]uint32{
	tar.TypeReg: unix.S_IFREG, tar.TypeLink: unix.S_IFREG, tar.TypeDir: unix.S_IFDIR, tar.TypeSymlink: unix.S_IFLNK,
	tar.TypeChar: unix.S_IFCHR, tar.TypeBlock: unix.S_IFBLK, tar.TypeFifo: unix.S_IFIFO,
}

// maxID is the highest ID of a user or group: the next number means none in Linux.
const maxID = math.MaxUint32 - 1

// parseInode returns the file of an entry without its data.
func parseInode(header *tar.Header) (*erofs.Inode, error) {
	kind, isKnown := fileTypes[header.Typeflag]
	uid, gid := int64(header.Uid), int64(header.Gid)
	switch {
	case layer.IsSparse(header):
		return nil, newContentError("it is a sparse file, which is not taken: build the image without --sparse")
	case !isKnown:
		return nil, newContentError("it has the type %q, which is not taken", header.Typeflag)
	case uid < 0 || uid > maxID || gid < 0 || gid > maxID:
		return nil, newContentError("it is of user %d and group %d: both must be 0 to %d", uid, gid, int64(maxID))
	}
	i := &erofs.Inode{
		Mode: kind | uint32(header.Mode&0o7777), UID: uint32(uid), GID: uint32(gid),
		Seconds: header.ModTime.Unix(), Nanoseconds: uint32(header.ModTime.Nanosecond()), //nolint:gosec // less than a second
	}
	if err := addDetails(i, header); err != nil {
		return nil, err
	}
	var err error
	i.Xattrs, err = parseXattrs(header)
	return i, err
}

// addDetails adds the target of a symbolic link, or the numbers of a device.
func addDetails(i *erofs.Inode, header *tar.Header) error {
	switch i.Type() {
	case unix.S_IFLNK:
		i.Target = header.Linkname
		i.Mode |= 0o777 // Linux ignores the mode of symbolic links, and reports this one
	case unix.S_IFCHR, unix.S_IFBLK:
		major, minor := header.Devmajor, header.Devminor
		if major < 0 || minor < 0 || major > math.MaxUint32 || minor > math.MaxUint32 {
			return newContentError("its device has the numbers %d and %d", major, minor)
		}
		if i.Type() == unix.S_IFCHR && major == 0 && minor == 0 {
			return newContentError("it is the device by which overlay file systems remove files")
		}
		i.Major, i.Minor = uint32(major), uint32(minor)
	}
	if err := i.Check(); err != nil {
		return newContentError("%w", err)
	}
	return nil
}

// xattrKey is the prefix of extended attributes in the PAX records of an entry.
const xattrKey = "SCHILY.xattr."

// namespaces are the namespaces of extended attributes in Linux. Other attributes are ignored, as
// in container engines.
var namespaces = []string{"user.", "trusted.", "security.", "system.posix_acl_"}

// parseXattrs returns the extended attributes of an entry.
func parseXattrs(header *tar.Header) (map[string]string, error) {
	var all map[string]string
	for key, value := range header.PAXRecords {
		name, ok := strings.CutPrefix(key, xattrKey)
		if !ok || !hasAnyPrefix(name, namespaces) {
			continue
		}
		if hasAnyPrefix(name, []string{"trusted.overlay.", "user.overlay."}) {
			return nil, newContentError("it has the attribute %s, which overlay file systems read as their own", quoteName(name))
		}
		if all == nil {
			all = map[string]string{}
		}
		all[name] = value
	}
	if err := (&erofs.Inode{Mode: unix.S_IFREG, Xattrs: all}).Check(); err != nil {
		return nil, newContentError("%w", err)
	}
	return all, nil
}

func hasAnyPrefix(text string, prefixes []string) bool {
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			return true
		}
	}
	return false
}
