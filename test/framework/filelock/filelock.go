// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filelock has locks of this host that are kept in files, and end with their process.
package filelock

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
)

// Lock waits for the lock in a file, and creates the file if it is missing.
func Lock(path string) (unlock func(), err error) { return lock(path, syscall.LOCK_EX) }

// TryLock is Lock without waiting: unlock is nil if another has the lock.
func TryLock(path string) (unlock func(), err error) {
	unlock, err = lock(path, syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, nil //nolint:nilnil // Nil is the answer for a lock that is not free.
	}
	return unlock, err
}

func lock(path string, operation int) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { // #nosec -- others run programs in it
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) // #nosec -- a test's
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), operation); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // closing is not enough while a forked child has a copy of f
		_ = f.Close()
	}, nil
}
