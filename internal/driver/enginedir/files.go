// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package enginedir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"k8s.io/apimachinery/pkg/util/uuid"
)

// Create makes a file, whole or not at all, and fails if it is there.
func (d *Dir) Create(path string, content []byte) error {
	tmp, err := d.write(content, !d.Fleeting)
	if err != nil {
		return err
	}
	defer tmp.Remove()
	if err := os.Link(tmp.file.Name(), path); err != nil {
		return err
	}
	return d.Sync(filepath.Dir(path))
}

// Replace makes a file or replaces it, whole or not at all. After a power cut it
// has the one content or the other.
func (d *Dir) Replace(path string, content []byte) error {
	return d.ReplaceIf(path, content, func() error { return nil })
}

// ReplaceIf is Replace unless check, the last thing before, has an error.
func (d *Dir) ReplaceIf(path string, content []byte, check func() error) error {
	return d.replace(path, content, !d.Fleeting, check)
}

// ReplaceFleeting is Replace for what means nothing after a power cut.
func (d *Dir) ReplaceFleeting(path string, content []byte) error {
	return d.replace(path, content, false, func() error { return nil })
}

func (d *Dir) replace(path string, content []byte, lasts bool, check func() error) error {
	tmp, err := d.write(content, lasts)
	if err != nil {
		return err
	}
	defer tmp.Remove()
	if err := check(); err != nil {
		return err
	}
	return os.Rename(tmp.file.Name(), path)
}

// write makes a file in tmp that is the caller's until it is moved or removed.
// What lasts is on the disk before it has its name: a file system may otherwise
// keep the name and lose the content.
func (d *Dir) write(content []byte, lasts bool) (*Lock, error) {
	tmp, err := d.makeFile()
	if err != nil {
		return nil, err
	}
	if _, err = tmp.file.Write(content); err == nil && lasts {
		err = tmp.file.Sync()
	}
	if err != nil {
		tmp.Remove()
		return nil, err
	}
	return tmp, nil
}

// Sync waits until what was put into a folder is on the disk by its name. Some
// file systems know no such thing.
func (d *Dir) Sync(folder string) error {
	if d.Fleeting {
		return nil
	}
	f, err := os.Open(folder) //nolint:gosec // in the engine's folder
	if err != nil {
		return err
	}
	err = f.Sync()
	if errors.Is(err, syscall.EINVAL) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// Install moves a folder that is whole into its place, where a power cut finds it
// whole too.
func (d *Dir) Install(folder, place string) error {
	if err := d.Sync(folder); err != nil {
		return err
	}
	if err := os.Rename(folder, place); err != nil {
		return err
	}
	return d.Sync(filepath.Dir(place))
}

// Temp makes a folder for something that is moved into place once it is whole,
// and returns what removes it again. What a process that was killed left there is
// swept by the next that makes one, or that opens the engine.
func (d *Dir) Temp() (path string, remove func(), err error) {
	d.sweep()
	for {
		path, err := os.MkdirTemp(d.Path(tmpDir), "make-*")
		if err != nil {
			return "", nil, err
		}
		lock, err := claimPath(path)
		if err == nil {
			return path, func() { _ = os.RemoveAll(path); lock.Release() }, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return "", nil, err
		}
	}
}

func (d *Dir) makeFile() (*Lock, error) {
	for {
		f, err := os.CreateTemp(d.Path(tmpDir), "write-*")
		if err != nil {
			return nil, err
		}
		if tmp, err := claim(f); !errors.Is(err, fs.ErrNotExist) {
			return tmp, err
		}
	}
}

// Discard removes a file or folder, so that it is gone at once even where its
// removal takes a while or is cut off. It needs no room on the disk.
func (d *Dir) Discard(path string) error {
	lock, err := claimPath(path)
	if err != nil {
		return err
	}
	defer lock.Release()
	gone := d.Path(tmpDir, "gone-"+string(uuid.NewUUID()))
	if err := os.Rename(path, gone); err != nil {
		return err
	}
	return os.RemoveAll(gone)
}

// sweep removes what processes that were killed left half done: what is in tmp
// and nobody's.
func (d *Dir) sweep() {
	entries, err := os.ReadDir(d.Path(tmpDir))
	if err != nil {
		return
	}
	for _, entry := range entries {
		path := d.Path(tmpDir, entry.Name())
		if lock, err := claimPath(path); err == nil {
			_ = os.RemoveAll(path)
			lock.Release()
		}
	}
}

func claimPath(path string) (*Lock, error) {
	f, err := os.Open(path) //nolint:gosec // in the engine's folder
	if err != nil {
		return nil, err
	}
	return claim(f)
}

// claim makes what is in tmp the caller's, who then has f, until it is released
// or this process ends. That somebody else has it, if only to sweep it, is
// ErrNotExist.
func claim(f *os.File) (*Lock, error) {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) || (err == nil && !isStill(f)) {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Lock{f}, nil
}
