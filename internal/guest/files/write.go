// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"archive/tar"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// writeFile writes a regular file. It writes the content to a temporary file and renames that, so that the old content
// stays until the new content is complete. A file that would lose a property by this is overwritten in place.
func (d Destination) writeFile(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	info, err := root.Lstat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return d.createFile(root, name, header, content)
	}
	if err == nil && !info.Mode().IsRegular() && info.Mode()&fs.ModeDevice == 0 {
		err = fmt.Errorf("%s is %s, and a file was copied", name, describeType(info.Mode()))
	}
	if err != nil {
		return err
	}
	if reason := reasonInPlace(info); reason != "" {
		return d.overwriteFile(root, name, header, content, reason)
	}
	return d.replaceFile(root, name, header, content)
}

func describeType(mode fs.FileMode) string {
	if mode.IsDir() {
		return "a folder"
	}
	return "a pipe or socket"
}

// reasonInPlace returns why a file has to be overwritten in place, or nothing.
func reasonInPlace(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&fs.ModeDevice != 0:
		return "it is a device"
	case ok && stat.Nlink > 1:
		return fmt.Sprintf("it has %d names", stat.Nlink)
	}
	return ""
}

// createBeside creates a temporary file in the same folder as name.
func createBeside(root *os.Root, name string, mode fs.FileMode) (f *os.File, beside string, err error) {
	beside = filepath.Join(filepath.Dir(name), ".drover-"+rand.Text())
	f, err = root.OpenFile(beside, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, "", &fs.PathError{Op: "create", Path: name, Err: withoutPath(err)}
	}
	return f, beside, nil
}

// withoutPath returns the cause of an error that names a path.
func withoutPath(err error) error {
	if at, ok := errors.AsType[*fs.PathError](err); ok {
		return at.Err
	}
	return err
}

// createFile creates a file that does not exist.
func (d Destination) createFile(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	mode := header.FileInfo().Mode()
	f, beside, err := createBeside(root, name, mode.Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	err = errors.Join(err, f.Close())
	if err == nil && d.SetOwner != nil {
		err = d.SetOwner(root, beside, mode)
	}
	if err == nil {
		err = root.Chtimes(beside, header.ModTime, header.ModTime)
	}
	if err == nil {
		err = root.Rename(beside, name)
	}
	if err != nil {
		_ = root.Remove(beside)
	}
	return err
}

// replaceFile replaces a file by a new one with the same owner, mode and attributes.
func (d Destination) replaceFile(root *os.Root, name string, header *tar.Header, content io.Reader) error {
	f, beside, err := createBeside(root, name, 0o600)
	if err != nil {
		return d.overwriteFile(root, name, header, content, fmt.Sprintf("no other file can be created in its folder: %v", withoutPath(err)))
	}
	defer func() { _ = errors.Join(f.Close(), root.Remove(beside)) }() // unless it is renamed
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	reason := ""
	err = copyAttributes(root, name, f)
	if err != nil {
		reason = fmt.Sprintf("its owner and attributes cannot be copied to another file: %v", err)
	} else {
		err = errors.Join(f.Sync(), root.Chtimes(beside, header.ModTime, header.ModTime), root.Rename(beside, name))
		if errors.Is(err, unix.EBUSY) {
			reason = "it is a mount point"
		}
	}
	if reason == "" {
		return err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return d.overwriteFile(root, name, header, f, reason)
}

// overwriteFile writes a file in place. If that fails, its old content is lost.
func (d Destination) overwriteFile(root *os.Root, name string, header *tar.Header, content io.Reader, reason string) error {
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_TRUNC|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("%s was overwritten in place, since %s, and is incomplete: %w", name, reason, err)
	}
	if d.Overwritten != nil {
		d.Overwritten.add(name, reason)
	}
	return root.Chtimes(name, header.ModTime, header.ModTime)
}

// maxXattrs is the limit of Linux for the list of a file's extended attributes, and for each value, in bytes.
const maxXattrs = 64 << 10

// copyAttributes copies the owner, mode and extended attributes of the file name to a new file.
func copyAttributes(root *os.Root, name string, to *os.File) error {
	from, err := root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return withoutPath(err)
	}
	defer func() { _ = from.Close() }()
	var stat unix.Stat_t
	if err := unix.Fstat(int(from.Fd()), &stat); err != nil {
		return err
	}
	if err := to.Chown(int(stat.Uid), int(stat.Gid)); err != nil {
		return withoutPath(err)
	}
	if err := unix.Fchmod(int(to.Fd()), uint32(stat.Mode&0o7777)); err != nil { //nolint:unconvert // The mode has 16 bits on other systems
		return err
	}
	return copyXattrs(int(from.Fd()), int(to.Fd()))
}

func copyXattrs(from, to int) error {
	names := make([]byte, maxXattrs)
	size, err := unix.Flistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return err
	}
	value := make([]byte, maxXattrs)
	for name := range strings.SplitSeq(strings.TrimRight(string(names[:size]), "\x00"), "\x00") {
		if name == "" {
			break
		}
		n, err := unix.Fgetxattr(from, name, value)
		if err == nil {
			err = unix.Fsetxattr(to, name, value[:n], 0)
		}
		if err != nil {
			return fmt.Errorf("attribute %q: %w", name, err)
		}
	}
	return nil
}
