// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package erofs

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// Limits of the format and of Linux.
const (
	// MaxName is how many bytes the name of a file or of an extended attribute may have.
	MaxName = 255
	// MaxTarget is how many bytes the target of a symbolic link may have.
	MaxTarget = 4095
	// MaxXattrs is how many bytes all extended attributes of an inode may have.
	MaxXattrs = 64 << 10
	maxMajor  = 1<<12 - 1
	maxMinor  = 1<<20 - 1
)

// Inode is a file of any type. A file that has several names is one Inode in several
// folders, or several times in one.
type Inode struct {
	// Mode is the type and the permissions, as in stat(2).
	Mode     uint32
	UID, GID uint32
	// Seconds and Nanoseconds are the time of the last change, since 1970.
	Seconds     int64
	Nanoseconds uint32
	// Major and Minor are the numbers of a device.
	Major, Minor uint32
	// Data is the content of a regular file.
	Data Data
	// Target is the path to which a symbolic link leads.
	Target string
	// Xattrs are the extended attributes, by their whole names.
	Xattrs map[string]string
	// Children are the files in a folder, without . and ...
	Children map[string]*Inode

	links uint32 // how many names it has
	nid   uint64 // its number in the file system
}

// Type returns the type's bits of the mode.
func (i *Inode) Type() uint32 { return i.Mode & unix.S_IFMT }

// IsDir reports whether the inode is a folder.
func (i *Inode) IsDir() bool { return i.Type() == unix.S_IFDIR }

// fileTypes are the types of inodes as entries of folders have them.
var fileTypes = map[uint32]byte{
	unix.S_IFREG: 1, unix.S_IFDIR: 2, unix.S_IFCHR: 3, unix.S_IFBLK: 4, unix.S_IFIFO: 5, unix.S_IFSOCK: 6, unix.S_IFLNK: 7,
}

// xattrPrefix is a prefix of names that is encoded as a number.
type xattrPrefix struct {
	text  string
	index byte
	// isWhole is set if nothing may follow it.
	isWhole bool
}

var xattrPrefixes = []xattrPrefix{
	{"user.", 1, false},
	{"system.posix_acl_access", 2, true},
	{"system.posix_acl_default", 3, true},
	{"trusted.", 4, false},
	{"security.", 6, false},
}

// IsXattr reports whether a file system can have extended attributes of this name.
func IsXattr(name string) bool {
	_, _, ok := splitXattr(name)
	return ok
}

// splitXattr returns the number of an attribute's prefix and the rest of its name.
func splitXattr(name string) (index byte, suffix string, ok bool) {
	for _, prefix := range xattrPrefixes {
		if rest, found := strings.CutPrefix(name, prefix.text); found && prefix.isWhole == (rest == "") {
			return prefix.index, rest, len(name) <= MaxName && !strings.Contains(rest, "\x00")
		}
	}
	return 0, "", false
}

// XattrsSize returns how many bytes of metadata extended attributes take.
func XattrsSize(xattrs map[string]string) int {
	if len(xattrs) == 0 {
		return 0
	}
	size := xattrHeaderSize
	for name, value := range xattrs {
		_, suffix, _ := splitXattr(name)
		size += roundUp(xattrEntrySize+len(suffix)+len(value), xattrAlign)
	}
	return size
}

// IsName reports whether a file can have this name.
func IsName(name string) bool {
	return name != "" && name != "." && name != ".." && len(name) <= MaxName && !strings.ContainsAny(name, "/\x00")
}

// Check refuses an inode that cannot be encoded.
func (i *Inode) Check() error {
	_, isType := fileTypes[i.Type()]
	switch {
	case !isType || i.Mode > 0xffff:
		return fmt.Errorf("its mode is %#o, which is not a mode of a file", i.Mode)
	case i.Type() == unix.S_IFLNK && (i.Target == "" || len(i.Target) > MaxTarget || strings.Contains(i.Target, "\x00")):
		return fmt.Errorf("the target of the link is %.100q: it must have 1 to %d bytes, and no zeros", i.Target, MaxTarget)
	case i.Major > maxMajor || i.Minor > maxMinor:
		return fmt.Errorf("the numbers of the device are %d and %d: at most %d and %d are possible", i.Major, i.Minor, maxMajor, maxMinor)
	case i.Nanoseconds >= 1e9:
		return fmt.Errorf("its time has %d nanoseconds in addition to the seconds", i.Nanoseconds)
	}
	for name := range i.Xattrs {
		if !IsXattr(name) {
			return fmt.Errorf("it cannot have the extended attribute %.100q", name)
		}
	}
	for name, value := range i.Xattrs {
		if len(value) >= MaxXattrs {
			return fmt.Errorf("its extended attribute %.100q has %d bytes", name, len(value))
		}
	}
	if size := XattrsSize(i.Xattrs); size > MaxXattrs {
		return fmt.Errorf("its extended attributes take %d bytes: at most %d are possible", size, MaxXattrs)
	}
	return nil
}
