// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package atomicfile creates and replaces files atomically: after a crash at any
// moment a file has its old content or its new content, never a part of either.
//
// Start with Write, for a single file, or with Folder, for a caller with a staging folder,
// in which files are written before they are moved to their final names. Open and Read
// (read.go) are for files in a folder that another user may write to.
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

// tempPrefix is the prefix of the temporary files that Write creates in the folder of the file.
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

// Update calls Write, unless the file already has the content.
func Update(path string, data []byte, perm fs.FileMode) error {
	have, _, err := Read(path, int64(len(data)))
	if err == nil && bytes.Equal(have, data) {
		return os.Chmod(path, perm)
	}
	return Write(path, data, perm)
}

// Sweep removes the temporary files of interrupted writes from dir.
func Sweep(dir string) error { return tempFolderIn(dir).Sweep() }

func tempFolderIn(dir string) Folder { return Folder{Path: dir, Prefix: tempPrefix} }

// Folder is a staging folder, on the same file system as the final paths of the files.
// A file in the folder is locked while a process writes it. Sweep, in any process,
// therefore removes only the files of killed processes.
type Folder struct {
	Path string
	// Prefix is the prefix of the names of new files. Sweep removes only files with this
	// prefix, so that the folder may contain other files.
	Prefix string
	// Volatile is set if the files need not survive a power cut, so that no write waits for the disk.
	Volatile bool
}

// Create creates a file with its whole content, or not at all. It fails with
// fs.ErrExist if the file exists.
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

// Replace creates or replaces a file with its whole content, or not at all. Just before
// the replacement it calls check, if check is not nil. If check returns an error, nothing
// changes. After a power cut the file has either the old content or the new content.
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

// writeTemp creates a locked temporary file, which the caller moves or removes. Unless
// Volatile is set, its content is on disk before the file gets its final name. If it were
// not, the file could have its name but not its content after a power cut.
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

// MakeFolder creates a locked folder in the staging folder, for content that is moved to its
// final path when it is complete. It also returns a function that removes the folder.
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
			return tmp, nil // without locks, no process sweeps the file
		case !errors.Is(err, fs.ErrNotExist):
			return tmp, err
		}
	}
}

// Discard removes a file or folder. The name disappears at once, even if the removal takes a while or is
// interrupted, and a power cut does not bring it back. Discard works on a full disk.
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

// Sweep removes the temporary files and folders of killed processes.
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

// lockedFile is a file or folder that this process has locked, until it calls unlock or ends.
type lockedFile struct{ *os.File }

// errNoLocks means that the file system does not offer locks.
var errNoLocks = errors.New("the file system does not offer locks")

func openLocked(path string) (*lockedFile, error) {
	f, err := openInPlace(path)
	if err != nil {
		return nil, err
	}
	locked, err := lockFile(f)
	if errors.Is(err, errNoLocks) {
		return nil, errors.Join(err, f.Close())
	}
	return locked, err
}

// lockFile locks f for the caller. It returns fs.ErrNotExist if another process has
// the lock, since that process may be sweeping the file at this moment.
func lockFile(f *os.File) (*lockedFile, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.ENOLCK), errors.Is(err, syscall.ENOTSUP), errors.Is(err, syscall.ENOSYS):
		return &lockedFile{f}, errNoLocks
	case errors.Is(err, syscall.EWOULDBLOCK), err == nil && !IsStillAtPath(f):
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &lockedFile{f}, nil
}

// IsStillAtPath reports whether the path by which a file was opened still leads to this
// file. The lock of a removed file protects nothing.
func IsStillAtPath(f *os.File) bool {
	held, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Stat(f.Name())
	return err == nil && os.SameFile(held, named)
}

// unlock unlocks and closes the file. Closing alone is not enough, since a process that
// is being forked at this moment also holds the descriptor, and with it the lock.
func (l *lockedFile) unlock() {
	_ = syscall.Flock(int(l.Fd()), syscall.LOCK_UN)
	_ = l.Close()
}

func (l *lockedFile) removeAndUnlock() {
	_ = os.Remove(l.Name())
	l.unlock()
}
