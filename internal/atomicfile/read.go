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

// Open opens a regular file for reading. It fails for a symbolic link, and for a pipe without blocking.
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

// Read opens a file with Open and returns its content, of at most maxBytes. So a user who may write
// to the folder can neither block the reader nor fill its memory.
func Read(path string, maxBytes int64) ([]byte, fs.FileInfo, error) {
	f, info, err := Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(content)) > maxBytes {
		err = fmt.Errorf("%s has more than %d bytes", path, maxBytes)
	}
	return content, info, err
}

// openInPlace opens a file of any kind, or a folder, for reading. It does not follow a symbolic link.
func openInPlace(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0) //nolint:gosec // in the caller's folder
}
