// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// errNotRegular means that a path names a folder, a pipe, a device or a symbolic link.
var errNotRegular = errors.New("not a regular file")

// Open opens a regular file for reading, and never what a symbolic link leads to. It does
// not block, as opening a pipe would.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := openInPlace(path)
	if errors.Is(err, syscall.ELOOP) {
		err = &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	if err != nil {
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: errNotRegular}
	}
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, info, nil
}

// Read returns the content of a file that Open opens, of at most so many bytes: whoever may
// write to its folder can neither delay the reader nor fill its memory.
func Read(path string, most int64) ([]byte, fs.FileInfo, error) {
	f, info, err := Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(content)) > most {
		err = fmt.Errorf("%s has more than %d bytes", path, most)
	}
	return content, info, err
}

// openInPlace opens a file or folder of this name, whatever it is, but follows no link.
func openInPlace(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // in the caller's folder
}
