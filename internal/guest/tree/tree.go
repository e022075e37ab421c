// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

// Package tree copies a folder of an image with all that belongs to its files. Start with Copy.
package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Copy copies what is in a folder into another one, which gets the owner, mode, extended attributes and times of the first:
// files, folders, links, hard links, devices, sockets and FIFOs. Links are copied and not followed. What Copy has written
// may still be in memory. A copy that failed is not complete. Nothing else may change the folders at the same time.
func Copy(from, to string) error {
	c := copier{from: from, to: to, linked: map[file]string{}}
	if err := filepath.WalkDir(from, c.copy); err != nil {
		return err
	}
	// Last, and children first: writing to a folder changes its times, and its attributes may be passed on to new files.
	for _, folder := range slices.Backward(c.folders) {
		if err := c.copyAttributes(folder); err != nil {
			return err
		}
	}
	return nil
}

// file identifies a file of several names.
type file struct{ device, inode uint64 }

type copier struct {
	from, to string
	folders  []string
	// linked has the first copy of each file of several names.
	linked map[file]string
}

// copy copies one file, folder or link.
func (c *copier) copy(path string, entry fs.DirEntry, err error) error {
	if err != nil {
		return err
	}
	name, err := filepath.Rel(c.from, path)
	if err != nil {
		return err
	}
	if entry.IsDir() {
		c.folders = append(c.folders, name)
		if name == "." {
			return nil
		}
		return os.Mkdir(filepath.Join(c.to, name), 0o700)
	}
	if err := c.copyFile(name); err != nil {
		return fmt.Errorf("copy %s: %w", path, err)
	}
	return nil
}

func (c *copier) copyFile(name string) error {
	from, to := filepath.Join(c.from, name), filepath.Join(c.to, name)
	var info unix.Stat_t
	if err := unix.Lstat(from, &info); err != nil {
		return err
	}
	if info.Nlink > 1 {
		id := file{info.Dev, info.Ino}
		if first, ok := c.linked[id]; ok {
			return os.Link(first, to)
		}
		c.linked[id] = to
	}
	var err error
	switch info.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		err = copyContent(from, to)
	case unix.S_IFLNK:
		var target string
		if target, err = os.Readlink(from); err == nil {
			err = os.Symlink(target, to)
		}
	default:
		err = unix.Mknod(to, info.Mode, int(info.Rdev)) //nolint:gosec // as mknod(2) takes it
	}
	if err != nil {
		return err
	}
	return c.copyAttributes(name)
}

func copyContent(from, to string) error {
	in, err := os.Open(from) //nolint:gosec // of the image
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600) //nolint:gosec // in the new folder
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// copyAttributes copies owner, extended attributes, mode and times, in this order: a new owner takes capabilities and
// set-user-ID away.
func (c *copier) copyAttributes(name string) error {
	from, to := c.from+"/"+name, c.to+"/"+name // not Join: a folder may be a link in /proc, and FOLDER/. is not
	var info unix.Stat_t
	if err := unix.Lstat(from, &info); err != nil {
		return err
	}
	if err := unix.Lchown(to, int(info.Uid), int(info.Gid)); err != nil {
		return err
	}
	if err := copyXattrs(from, to); err != nil {
		return err
	}
	if info.Mode&unix.S_IFMT != unix.S_IFLNK {
		if err := unix.Chmod(to, info.Mode&0o7777); err != nil {
			return err
		}
	}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{info.Atim, info.Mtim}, unix.AT_SYMLINK_NOFOLLOW)
}

// maxXattr is how many bytes a value, and all names, may have: XATTR_SIZE_MAX and XATTR_LIST_MAX of Linux.
const maxXattr = 64 << 10

func copyXattrs(from, to string) error {
	names, value := make([]byte, maxXattr), make([]byte, maxXattr)
	n, err := unix.Llistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	for name := range bytes.SplitSeq(names[:n], []byte{0}) {
		if len(name) == 0 {
			continue
		}
		size, err := unix.Lgetxattr(from, string(name), value)
		if err == nil {
			err = unix.Lsetxattr(to, string(name), value[:size], 0)
		}
		if err != nil {
			return fmt.Errorf("the attribute %s: %w", name, err)
		}
	}
	return nil
}
