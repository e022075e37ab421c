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

// MakeLock creates the lock file of the images. The process that runs machines creates it
// first: it could not open a file that another user created.
func (s *Store) MakeLock() error {
	lock, err := lockFile(s.lockPath(), os.O_CREATE, syscall.LOCK_SH)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: user %d, who runs Drover, must be able to write to it; it must be given to that user (chown), or removed while no Drover runs",
			err, os.Geteuid())
	case err != nil:
		return err
	}
	lock.release()
	return nil
}

// Hold prevents images from being pruned while a disk is made of one, until it is
// recorded that the disk stands on it. It fails with ErrLocked during a Prune.
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

// Prune removes the unused images, and returns them. It calls used, which returns the
// names of those in use, while no disk is being made of any. A store without a lock file
// never had an image.
func (s *Store) Prune(ctx context.Context, used func() (map[string]bool, error)) ([]StoredImage, error) {
	lock, err := s.lockExclusively(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer lock.release()
	names, err := used()
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

// removeSources removes the sources whose image is missing, which would be fetched again: also those that a Prune which
// was killed has left.
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
			return nil, newError(ErrLocked, "disks are being made of images all the time: %w", ctx.Err())
		case <-s.Clock.After(lockInterval):
		}
	}
}

func (s *Store) lockPath() string { return s.filePath(lockName) }

// fileLock is the lock of a file, which this process holds.
type fileLock struct{ file *os.File }

// lockFile locks a file as flock(2) does, without waiting: EWOULDBLOCK means that another
// process has the lock. Flags may have O_CREATE.
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

// release unlocks the file before it closes it: a process that is being forked at this
// moment has the descriptor too.
func (l *fileLock) release() {
	_ = syscall.Flock(int(l.file.Fd()), syscall.LOCK_UN)
	_ = l.file.Close()
}
