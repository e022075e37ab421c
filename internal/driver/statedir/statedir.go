// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package statedir is the groundwork of an engine that is a folder, shared by
// several controllers: an identity, a lock for each server, the epochs of the
// leaders that have acted, and files that are written whole or not at all.
//
// Start with Open. Lock and then Admit come before each change of a server.
package statedir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/driver"
)

// Names in the folder.
const (
	IDFile    = "engine-id"
	locksDir  = "locks"
	epochsDir = "epochs"
	tmpDir    = "tmp"
)

// Dir is an engine's folder.
type Dir struct {
	// Fleeting is set where nothing in the folder has to outlive a power cut, so
	// that nobody waits for the disk.
	Fleeting bool

	path, name string
	subs       []string

	mu     sync.Mutex
	pinned string // the engine that calls act on
}

// Open makes the folder and the sub-folders named where they are missing. The
// name, such as "the qemu driver's folder", is for errors.
func Open(name, path string, subs ...string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := &Dir{path: path, name: name, subs: append(subs, locksDir, epochsDir, tmpDir)}
	if err := errors.Join(os.MkdirAll(path, 0o700), d.MakeFolders()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.sweep()
	if err := d.makeID(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, err = d.ID()
	return d, err
}

// OpenExisting opens a folder that is an engine already, and makes nothing in it:
// what root makes, the engine's own user could not open.
func OpenExisting(name, path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := &Dir{path: path, name: name}
	_, err = d.ID()
	return d, err
}

// Path of something in the folder.
func (d *Dir) Path(names ...string) string {
	return filepath.Join(append([]string{d.path}, names...)...)
}

// MakeFolders makes the sub-folders, which a person may have removed.
func (d *Dir) MakeFolders() error {
	for _, sub := range d.subs {
		if err := os.Mkdir(d.Path(sub), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// makeID gives a new folder its identity; of two processes that try, one wins.
func (d *Dir) makeID() error {
	if _, err := os.Lstat(d.Path(IDFile)); err == nil {
		return nil
	}
	err := d.Create(d.Path(IDFile), []byte(string(uuid.NewUUID())+"\n"))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// ID reads the engine's identity, which is the one to act on from then on.
func (d *Dir) ID() (string, error) {
	id, err := d.readID()
	if err != nil {
		return "", err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pinned = id
	return id, nil
}

func (d *Dir) readID() (string, error) {
	content, err := os.ReadFile(d.Path(IDFile))
	if err != nil {
		return "", driver.Errorf(driver.ErrUnavailable, "%s: %w", d.name, err)
	}
	id := strings.TrimSpace(string(content))
	if driver.CheckUID(types.UID(id)) != nil {
		return "", driver.Errorf(driver.ErrUnavailable, "%s does not hold a UUID", d.Path(IDFile))
	}
	return id, nil
}

// Reach makes sure that the folder is there and still the same engine: a folder
// that was emptied, moved or not mounted is not an engine without servers.
func (d *Dir) Reach() error {
	id, err := d.readID()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if id != d.pinned {
		return driver.Errorf(driver.ErrUnavailable, "%s is another engine now: its id was %s and is %s", d.path, d.pinned, id)
	}
	return nil
}

// Explain says of a change that failed whether the folder is lost, its disk is
// full, or only this change failed. An error that says of what kind it is stays as
// it is.
func (d *Dir) Explain(err error) error {
	if !driver.Ambiguous(err) {
		return err
	}
	if lost := d.Reach(); lost != nil {
		return lost
	}
	_ = d.MakeFolders()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return driver.Errorf(driver.ErrExhausted, "%s has no room left on its disk: %w", d.name, err)
	}
	return driver.Errorf(driver.ErrRetry, "%w", err)
}

// Lock is one that is held.
type Lock struct {
	file *os.File
}

// TryLock locks a file, which it makes where it is missing: with others
// (syscall.LOCK_SH) or alone (LOCK_EX). It does not wait: EWOULDBLOCK says that
// another caller has it.
func TryLock(path string, how int) (*Lock, error) { return tryLock(path, os.O_CREATE, how) }

// TryLockExisting is TryLock, but where there is no file that is an error.
func TryLockExisting(path string, how int) (*Lock, error) { return tryLock(path, 0, how) }

func tryLock(path string, create, how int) (*Lock, error) {
	f, err := os.OpenFile(path, create|os.O_RDWR, 0o600) //nolint:gosec // The path is the caller's.
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Lock{f}, nil
}

// Lock takes a server's lock, or says that another caller has it: a process
// that was halted must not halt the others.
func (d *Dir) Lock(uid types.UID) (*Lock, error) {
	for {
		l, err := TryLock(d.Path(locksDir, string(uid)), syscall.LOCK_EX)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, driver.Errorf(driver.ErrRetry, "the server %s is being changed by another caller: %w", uid, err)
		case err != nil:
			return nil, d.Explain(err)
		case atomicfile.HasName(l.file):
			return l, nil
		}
		_ = l.file.Close()
	}
}

// Release gives the lock back. To close the file would not do: a process that is
// being forked at this moment has it too.
func (l *Lock) Release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}

// Remove gives the lock back of something of which nothing is left, and removes
// the file that it is on.
func (l *Lock) Remove() {
	_ = os.Remove(l.file.Name())
	l.Release()
}
