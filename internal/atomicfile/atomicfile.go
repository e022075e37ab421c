// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile creates and replaces files atomically: after a crash at any
// moment a file has its old content or its new content, never a part of one.
//
// Start with Write, for a single file, or with Folder, for a caller that has a
// staging folder where things are made before they are moved to their final name. Open and
// Read (read.go) are for files in a folder that another user may write to.
package atomicfile

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/crashpoint"
)

// tempPrefix marks the temporary files of Write in a folder that has other files
// too.
const tempPrefix = ".tmp-"

// Write makes data the content of the file at path. When it returns, the file is on
// disk under its name.
func Write(path string, data []byte, perm fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := tempFolderIn(dir).Replace(path, data, perm, nil); err != nil {
		return err
	}
	return SyncFolder(dir)
}

// Update does what Write does, unless the file already has that content.
func Update(path string, data []byte, perm fs.FileMode) error {
	have, _, err := Read(path, int64(len(data)))
	if err == nil && bytes.Equal(have, data) {
		return os.Chmod(path, perm)
	}
	return Write(path, data, perm)
}

// Sweep removes from dir what interrupted writes have left.
func Sweep(dir string) error { return tempFolderIn(dir).Sweep() }

func tempFolderIn(dir string) Folder { return Folder{Path: dir, Prefix: tempPrefix} }

// Folder is a staging folder, on the same file system as the final place. What is
// being made is locked until it is done. Sweep, in any process, therefore removes
// only what a killed process left.
type Folder struct {
	Path string
	// Prefix begins the names of files that are made. Sweep touches nothing else, so that
	// the folder may contain other things too.
	Prefix string
	// Volatile is set if nothing has to survive a power cut, so that no write waits
	// for the disk.
	Volatile bool
}

// Create makes a file, whole or not at all. It fails with fs.ErrExist if the file
// exists.
func (d Folder) Create(path string, content []byte, perm fs.FileMode) error {
	tmp, err := d.writeTemp(content, perm)
	if err != nil {
		return err
	}
	defer tmp.removeAndUnlock()
	point := crashpoint.Begin("create", path)
	err = os.Link(tmp.Name(), path)
	point.End()
	if err != nil || d.Volatile {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// Replace makes or replaces a file, whole or not at all. check, which may be nil,
// runs last before that; if it returns an error nothing changes. After a power cut
// the file has either the old content or the new.
func (d Folder) Replace(path string, content []byte, perm fs.FileMode, check func() error) error {
	tmp, err := d.writeTemp(content, perm)
	if err != nil {
		return err
	}
	defer tmp.removeAndUnlock()
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	point := crashpoint.Begin("replace", path)
	err = os.Rename(tmp.Name(), path)
	point.End()
	return err
}

// writeTemp makes a temporary file that the caller owns until it is moved or removed.
// Unless Volatile, its content is on disk before it gets its name: a file system
// may otherwise keep the name and lose the content.
func (d Folder) writeTemp(content []byte, perm fs.FileMode) (*lockedFile, error) {
	tmp, err := d.createTemp()
	if err != nil {
		return nil, err
	}
	if _, err = tmp.Write(content); err == nil {
		err = tmp.Chmod(perm)
	}
	if err == nil && !d.Volatile {
		err = tmp.Sync()
	}
	if err != nil {
		tmp.removeAndUnlock()
		return nil, err
	}
	return tmp, nil
}

// MakeFolder makes a folder for something that is moved into place once it is
// whole. It also returns a function that removes the folder.
func (d Folder) MakeFolder() (path string, remove func(), err error) {
	for {
		path, err := os.MkdirTemp(d.Path, d.Prefix+"make-*")
		if err != nil {
			return "", nil, err
		}
		tmp, err := openLocked(path)
		if err == nil {
			return path, func() { _ = os.RemoveAll(path); tmp.unlock() }, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
}

func (d Folder) createTemp() (*lockedFile, error) {
	for {
		f, err := os.CreateTemp(d.Path, d.Prefix+"write-*")
		if err != nil {
			return nil, err
		}
		tmp, err := lockFile(f)
		switch {
		case errors.Is(err, errNoLocks):
			return tmp, nil // no process can sweep it either
		case !errors.Is(err, fs.ErrNotExist):
			return tmp, err
		}
	}
}

// Discard removes a file or folder. It disappears at once, even if the removal
// takes a while or is interrupted, and a power cut does not bring it back. Discard needs no
// disk space.
func (d Folder) Discard(path string) error {
	lock, err := openLocked(path)
	if err != nil {
		return err
	}
	defer lock.unlock()
	gone := filepath.Join(d.Path, d.Prefix+"gone-"+string(uuid.NewUUID()))
	point := crashpoint.Begin("discard", path)
	err = os.Rename(path, gone)
	point.End()
	if err != nil {
		return err
	}
	if !d.Volatile {
		if err := SyncFolder(filepath.Dir(path)); err != nil {
			return err
		}
	}
	return os.RemoveAll(gone)
}

// Sweep removes what killed processes left unfinished.
func (d Folder) Sweep() error {
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), d.Prefix) {
			continue
		}
		path := filepath.Join(d.Path, entry.Name())
		if lock, err := openLocked(path); err == nil {
			errs = append(errs, os.RemoveAll(path))
			lock.unlock()
		}
	}
	return errors.Join(errs...)
}

// SyncFolder waits until the names in a folder are on disk. It ignores file systems
// that do not support this.
func SyncFolder(path string) error {
	f, err := os.Open(path) //nolint:gosec // The caller chose the folder.
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// lockedFile is a file or folder that this process owns until it is released or the
// process ends.
type lockedFile struct{ *os.File }

// errNoLocks means that the file system does not offer locks.
var errNoLocks = errors.New("the file system does not offer locks")

func openLocked(path string) (*lockedFile, error) {
	f, err := openInPlace(path)
	if err != nil {
		return nil, err
	}
	c, err := lockFile(f)
	if errors.Is(err, errNoLocks) {
		return nil, errors.Join(err, f.Close())
	}
	return c, err
}

// lockFile locks f for the caller. It returns fs.ErrNotExist if another process has
// the lock, even if only to sweep the file.
func lockFile(f *os.File) (*lockedFile, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		return &lockedFile{f}, errNoLocks
	case errors.Is(err, syscall.EWOULDBLOCK), err == nil && !HasName(f):
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lockedFile{f}, nil
}

// HasName reports whether a file still has the name by which it was opened. The
// lock of a removed file protects nothing.
func HasName(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err == nil && os.SameFile(held, named)
}

// unlock unlocks and closes the file. Closing alone is not enough: a process that
// is being forked at this moment also has the descriptor open.
func (c *lockedFile) unlock() {
	_ = syscall.Flock(int(c.Fd()), syscall.LOCK_UN)
	_ = c.Close()
}

func (c *lockedFile) removeAndUnlock() {
	_ = os.Remove(c.Name())
	c.unlock()
}
