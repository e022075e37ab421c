// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile makes and replaces files so that a crash at any moment leaves
// the old content or the new, never a part of one.
//
// Start with Write, for a file among others, or with Folder, for who has a place of
// its own where things are made before they have their name.
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
)

// tempPrefix marks what Write makes in a folder that has other files too.
const tempPrefix = ".tmp-"

// Write makes data the content of the file at path. It is on disk, under its
// name, when Write returns.
func Write(path string, data []byte, perm fs.FileMode) error {
	dir := filepath.Dir(path)
	if err := beside(dir).Replace(path, data, perm, nil); err != nil {
		return err
	}
	return SyncFolder(dir)
}

// Update does what Write does, unless the file has that content already.
func Update(path string, data []byte, perm fs.FileMode) error {
	have, err := os.ReadFile(path) //nolint:gosec // The caller chose the file.
	if err == nil && bytes.Equal(have, data) {
		return os.Chmod(path, perm)
	}
	return Write(path, data, perm)
}

// Sweep removes what writes that did not end have left in dir.
func Sweep(dir string) error { return beside(dir).Sweep() }

func beside(dir string) Folder { return Folder{Path: dir, Prefix: tempPrefix} }

// Folder is where things are made before they have their place, on the same file
// system. What is being made is locked until it is done, so that Sweep, in whatever
// process, removes only what a process left that was killed.
type Folder struct {
	Path string
	// Prefix begins the names of what is made. Sweep touches nothing else, which is
	// for a folder that has other things too.
	Prefix string
	// Fleeting is set where nothing has to outlive a power cut, so that nobody waits
	// for the disk.
	Fleeting bool
}

// Create makes a file, whole or not at all, and fails with fs.ErrExist if it is there.
func (d Folder) Create(path string, content []byte, perm fs.FileMode) error {
	tmp, err := d.write(content, perm)
	if err != nil {
		return err
	}
	defer tmp.remove()
	if err := os.Link(tmp.Name(), path); err != nil || d.Fleeting {
		return err
	}
	return SyncFolder(filepath.Dir(path))
}

// Replace makes a file or replaces it, whole or not at all, unless check, the last
// thing before, has an error; it may be nil. After a power cut the file has the one
// content or the other.
func (d Folder) Replace(path string, content []byte, perm fs.FileMode, check func() error) error {
	tmp, err := d.write(content, perm)
	if err != nil {
		return err
	}
	defer tmp.remove()
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	return os.Rename(tmp.Name(), path)
}

// write makes a file that is the caller's until it is moved or removed. What lasts is
// on the disk before it has its name: a file system may otherwise keep the name and
// lose the content.
func (d Folder) write(content []byte, perm fs.FileMode) (*claimed, error) {
	tmp, err := d.makeFile()
	if err != nil {
		return nil, err
	}
	if _, err = tmp.Write(content); err == nil {
		err = tmp.Chmod(perm)
	}
	if err == nil && !d.Fleeting {
		err = tmp.Sync()
	}
	if err != nil {
		tmp.remove()
		return nil, err
	}
	return tmp, nil
}

// MakeFolder makes a folder for something that is moved into place once it is whole,
// and returns what removes it again.
func (d Folder) MakeFolder() (path string, remove func(), err error) {
	for {
		path, err := os.MkdirTemp(d.Path, d.Prefix+"make-*")
		if err != nil {
			return "", nil, err
		}
		tmp, err := claimPath(path)
		if err == nil {
			return path, func() { _ = os.RemoveAll(path); tmp.release() }, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
}

func (d Folder) makeFile() (*claimed, error) {
	for {
		f, err := os.CreateTemp(d.Path, d.Prefix+"write-*")
		if err != nil {
			return nil, err
		}
		tmp, err := claim(f)
		switch {
		case errors.Is(err, errNoLocks):
			return tmp, nil // nor can anybody sweep it
		case !errors.Is(err, fs.ErrNotExist):
			return tmp, err
		}
	}
}

// Discard removes a file or folder, so that it is gone at once even where its removal
// takes a while or is cut off. It needs no room on the disk.
func (d Folder) Discard(path string) error {
	lock, err := claimPath(path)
	if err != nil {
		return err
	}
	defer lock.release()
	gone := filepath.Join(d.Path, d.Prefix+"gone-"+string(uuid.NewUUID()))
	if err := os.Rename(path, gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// Sweep removes what processes that were killed left half done.
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
		if lock, err := claimPath(path); err == nil {
			errs = append(errs, os.RemoveAll(path))
			lock.release()
		}
	}
	return errors.Join(errs...)
}

// SyncFolder waits until what was put into a folder is on the disk by its name. Some
// file systems know no such thing.
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

// claimed is a file or folder that this process has until it is released or the
// process ends.
type claimed struct{ *os.File }

// errNoLocks : the file system has no locks.
var errNoLocks = errors.New("the file system has no locks")

func claimPath(path string) (*claimed, error) {
	f, err := os.Open(path) //nolint:gosec // in the caller's folder
	if err != nil {
		return nil, err
	}
	c, err := claim(f)
	if errors.Is(err, errNoLocks) {
		return nil, errors.Join(err, f.Close())
	}
	return c, err
}

// claim makes f the caller's. That somebody else has it, if only to sweep it, is
// ErrNotExist.
func claim(f *os.File) (*claimed, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		return &claimed{f}, errNoLocks
	case errors.Is(err, syscall.EWOULDBLOCK), err == nil && !HasName(f):
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &claimed{f}, nil
}

// HasName reports whether a file still has the name that it was opened by: who holds
// the lock of one that was removed holds nothing.
func HasName(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err == nil && os.SameFile(held, named)
}

// release gives it back. To close the file would not do: a process that is being
// forked at this moment has it too.
func (c *claimed) release() {
	_ = syscall.Flock(int(c.Fd()), syscall.LOCK_UN)
	_ = c.Close()
}

func (c *claimed) remove() {
	_ = os.Remove(c.Name())
	c.release()
}
