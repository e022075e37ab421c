// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile replaces files so that a crash at any moment leaves the
// old content or the new, never a part of one. Start with Write.
package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tempPrefix marks files that a crash may have left behind; Sweep removes them.
const tempPrefix = ".tmp-"

// Write makes data the content of the file at path. It is on disk, under its
// name, when Write returns.
func Write(path string, data []byte, perm fs.FileMode) error {
	temp, err := os.CreateTemp(filepath.Dir(path), tempPrefix+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	err = fill(temp, data, perm)
	if err == nil {
		err = os.Rename(temp.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	return syncDir(filepath.Dir(path))
}

// Update does what Write does, unless the file has that content already.
func Update(path string, data []byte, perm fs.FileMode) error {
	have, err := os.ReadFile(path) //nolint:gosec // The caller chose the file.
	if err == nil && bytes.Equal(have, data) {
		return os.Chmod(path, perm)
	}
	return Write(path, data, perm)
}

func fill(f *os.File, data []byte, perm fs.FileMode) error {
	_, err := f.Write(data)
	if err == nil {
		err = f.Chmod(perm)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncDir makes a rename in dir last.
func syncDir(dir string) error {
	d, err := os.Open(dir) //nolint:gosec // The caller chose the folder.
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Sweep removes what writes that did not end have left in dir.
func Sweep(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), tempPrefix) {
			continue
		}
		if err := os.Remove(filepath.Join(dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
