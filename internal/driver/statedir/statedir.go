// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package statedir is the common base of drivers whose engine is a folder that several
// controllers share. The folder has an identity, a lock for each server, the epochs of
// the leaders that have acted, and files that are written completely or not at all.
//
// Start with Open. Call Lock and then Admit before each change of a server.
package statedir

import (
	"cmp"
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
	"cloudnative.tw/drover/internal/format"
)

// Names in the folder.
const (
	IDFile    = "engine-id"
	locksDir  = "locks"
	epochsDir = "epochs"
	tmpDir    = "tmp"
)

// maxIDSize is far above the size of the file IDFile.
const maxIDSize = 1 << 10

// Dir is an engine's folder.
type Dir struct {
	// Volatile is set if nothing in the folder has to survive a power cut, so that
	// writes need not wait for the disk.
	Volatile bool

	path, name string
	subs       []string

	mu     sync.Mutex
	pinned string // the id of the engine that calls may act on
}

// Open opens a folder, and creates the folder and the sub-folders subs if they are
// missing. Errors begin with the name, such as "the qemu driver's folder".
func Open(name, path string, subs ...string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := &Dir{path: path, name: name, subs: append(subs, locksDir, epochsDir, tmpDir)}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := cmp.Or(d.checkOwner(), d.checkVersion()); err != nil {
		return nil, err
	}
	if err := cmp.Or(format.MarkFolder(path, format.NeededVersion()), d.MakeFolders()); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d.sweepStaging()
	if err := d.makeID(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	_, err = d.ID()
	return d, err
}

// OpenExisting opens the folder of an existing engine, and creates nothing in it: it is
// for tools that root may run, and the engine's user could not open files of root.
func OpenExisting(name, path string) (*Dir, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	d := &Dir{path: path, name: name}
	if err := cmp.Or(d.checkOwner(), d.checkVersion()); err != nil {
		return d, err
	}
	_, err = d.ID()
	return d, err
}

// checkOwner does not let root use another user's folder: with symbolic links that user could make
// root write and remove files elsewhere.
func (d *Dir) checkOwner() error {
	var info syscall.Stat_t
	if os.Geteuid() != 0 {
		return nil
	}
	if err := syscall.Stat(d.path, &info); err != nil || info.Uid == 0 {
		return nil //nolint:nilerr // Later calls report a folder that is missing.
	}
	return driver.Errorf(driver.ErrUnavailable,
		"%s: %s belongs to user ID %d, and root acts in no other user's folder: run this as that user, or give the folder to root",
		d.name, d.path, info.Uid)
}

// checkVersion refuses a folder that only later versions of Drover can read.
func (d *Dir) checkVersion() error {
	if err := format.CheckFolder(d.path); err != nil {
		return driver.Errorf(driver.ErrUnavailable, "%s: %w", d.name, err)
	}
	return nil
}

// Path joins names to the folder's path.
func (d *Dir) Path(names ...string) string {
	return filepath.Join(append([]string{d.path}, names...)...)
}

// MakeFolders creates the sub-folders that are missing. A person may have removed some.
func (d *Dir) MakeFolders() error {
	for _, sub := range d.subs {
		if err := os.Mkdir(d.Path(sub), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

// makeID creates the identity of a new folder, unless another process has just done so.
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

// ID reads the engine's identity and pins it: later calls act on that engine.
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
	content, _, err := atomicfile.Read(d.Path(IDFile), maxIDSize)
	if err != nil {
		return "", driver.Errorf(driver.ErrUnavailable, "%s: %w", d.name, err)
	}
	id := strings.TrimSpace(string(content))
	if driver.CheckUID(types.UID(id)) != nil {
		return "", driver.Errorf(driver.ErrUnavailable, "%s does not hold a UUID", d.Path(IDFile))
	}
	return id, nil
}

// Reach checks that the folder exists and has the pinned identity. A folder that was
// emptied, moved or not mounted must not look like an engine without servers.
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

// Explain gives the error of a failed change a kind: ErrUnavailable if the folder is
// lost, ErrExhausted if its disk is full, otherwise ErrRetry. An error that has a kind
// is returned unchanged.
func (d *Dir) Explain(err error) error {
	if !driver.Ambiguous(err) {
		return err
	}
	if lost := d.Reach(); lost != nil {
		return lost
	}
	_ = d.MakeFolders()
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return driver.Errorf(driver.ErrExhausted, "%s: there is no room left on its disk: %w", d.name, err)
	}
	return driver.Errorf(driver.ErrRetry, "%w", err)
}

// Lock is an flock on a file that this process holds.
type Lock struct {
	file *os.File
}

// TryLock locks a file, shared (syscall.LOCK_SH) or exclusively (LOCK_EX), and creates
// the file if it is missing. It does not wait: EWOULDBLOCK means that another caller
// holds the lock.
func TryLock(path string, operation int) (*Lock, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // The path is the caller's.
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), operation|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Lock{f}, nil
}

// Lock locks a server, or fails with ErrRetry if another caller holds the lock. It does
// not wait, because a suspended process must not block the others.
func (d *Dir) Lock(uid types.UID) (*Lock, error) {
	for {
		l, err := TryLock(d.Path(locksDir, string(uid)), syscall.LOCK_EX)
		switch {
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, driver.Errorf(driver.ErrRetry, "the server %s is being changed by another caller: %w", uid, err)
		case err != nil:
			return nil, d.Explain(err)
		case atomicfile.IsStillAtPath(l.file):
			return l, nil
		}
		_ = l.file.Close()
	}
}

// Release releases the lock. To close the file is not enough, since a process that is
// being forked at this moment also holds the descriptor.
func (l *Lock) Release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}

// Remove deletes the lock file of a server that was removed, and releases the lock.
func (l *Lock) Remove() {
	_ = os.Remove(l.file.Name())
	l.Release()
}
