// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"cloudnative.tw/drover/test/assert"
)

// lockDir has the locks that a user's tests share on this host, in whatever checkout and TMPDIR.
func lockDir() (string, error) {
	dir := fmt.Sprintf("/tmp/.drover-test-locks-%d", os.Getuid())
	return dir, os.MkdirAll(dir, 0o700)
}

// tryLock takes a lock of this host. It returns nil if another has it.
func tryLock(name string) (*os.File, error) {
	dir, err := lockDir()
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = nil
		}
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

var leases struct {
	sync.Mutex
	files []*os.File // a file that is closed loses its lock
}

// lease takes a lock until this process ends, and reports whether it was free.
func lease(name string) (bool, error) {
	f, err := tryLock(name)
	if f == nil {
		return false, err
	}
	leases.Lock()
	defer leases.Unlock()
	leases.files = append(leases.files, f)
	return true, nil
}

// maxStarts is how many clusters start on this host at a time: more would take longer, all of them.
const maxStarts = 2

// lockStart waits until this process may start a cluster, and returns what to call when that is done.
func lockStart() (unlock func(), err error) {
	err = assert.Poll(context.Background(), "a turn to start a cluster", func() error {
		for n := range maxStarts {
			f, err := tryLock(fmt.Sprintf("start-%d", n))
			if err != nil {
				return err
			}
			if f != nil {
				unlock = func() { _ = f.Close() }
				return nil
			}
		}
		return fmt.Errorf("%d others start on this host", maxStarts)
	})
	return unlock, err
}
