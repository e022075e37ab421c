// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// lockInterval is the interval between two attempts to lock the store exclusively.
const lockInterval = 10 * time.Millisecond

// MakeLock creates the lock file of the store. The process that runs machines must create it
// before other users do, since it could not open a file of another user.
func (s *Store) MakeLock() error {
	lock, err := lockFile(s.lockPath(), os.O_CREATE, syscall.LOCK_SH)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: user %d, who runs Drover, must be able to write to this file: give it to that user (chown), or remove it while no Drover runs",
			err, os.Geteuid())
	case err != nil:
		return err
	}
	lock.release()
	return nil
}

// Hold prevents Prune until release. The caller makes a disk on top of an image meanwhile, and
// records that the disk uses the image. Hold fails with ErrLocked during a Prune.
func (s *Store) Hold() (release func(), err error) {
	lock, err := lockFile(s.lockPath(), os.O_CREATE, syscall.LOCK_SH)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, newError(ErrLocked, "images are being pruned: %w", err)
	}
	if err != nil {
		return nil, err
	}
	return lock.release, nil
}

// Prune removes unused images, and returns them. usedNames returns the names of the images in
// use. Prune calls it while no caller of Hold is making a disk.
func (s *Store) Prune(ctx context.Context, usedNames func() (map[string]bool, error)) ([]StoredImage, error) {
	lock, err := s.lockExclusively(ctx)
	if errors.Is(err, fs.ErrNotExist) { // a store without a lock file never had an image
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.release()
	names, err := usedNames()
	if err != nil {
		return nil, err
	}
	images, err := s.List()
	if err != nil {
		return nil, err
	}
	var removed []StoredImage
	for _, i := range images {
		if names[i.Name] {
			continue
		}
		if err := os.Remove(s.filePath(i.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return removed, err
		}
		removed = append(removed, i)
	}
	return removed, s.removeSources()
}

// removeSources removes the files of sources whose image does not exist any more, even of images that an interrupted
// Prune has removed.
func (s *Store) removeSources() error {
	entries, err := os.ReadDir(s.filePath(""))
	errs := []error{err}
	for name, sources := range s.sourcesByName(entries) {
		if _, err := os.Lstat(s.filePath(name)); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		for _, source := range sources {
			errs = append(errs, os.Remove(s.refPath(source)))
		}
	}
	return errors.Join(errs...)
}

func (s *Store) lockExclusively(ctx context.Context) (*fileLock, error) {
	for {
		lock, err := lockFile(s.lockPath(), 0, syscall.LOCK_EX)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return lock, err
		}
		select {
		case <-ctx.Done():
			return nil, newError(ErrLocked, "waiting until no disk is being made of an image: %w", ctx.Err())
		case <-s.Clock.After(lockInterval):
		}
	}
}

func (s *Store) lockPath() string { return s.filePath(lockName) }

// fileLock is a lock on a file that this process holds.
type fileLock struct{ file *os.File }

// lockFile locks a file with flock(2), without waiting. EWOULDBLOCK means that another process
// has the lock. flags may be O_CREATE.
func lockFile(path string, flags, operation int) (*fileLock, error) {
	f, err := os.OpenFile(path, flags|os.O_RDWR, 0o600) //nolint:gosec // in the store
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), operation|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &fileLock{f}, nil
}

// release unlocks the file explicitly. To close it is not enough, since a process that is being
// forked may have the descriptor too.
func (l *fileLock) release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}
