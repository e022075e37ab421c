// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filelock"
)

// tryLock takes a lock that a user's tests share on this host, in whatever checkout and TMPDIR. It
// returns nil if another has it.
func tryLock(name string) (unlock func(), err error) {
	dir := fmt.Sprintf("/tmp/.drover-test-locks-%d", os.Getuid())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	return filelock.TryLock(filepath.Join(dir, name))
}

var leases struct {
	sync.Mutex
	all []func() // a lock that nothing refers to is lost
}

// leaseName takes a lock until this process ends, and reports whether it was free.
func leaseName(name string) (bool, error) {
	unlock, err := tryLock(name)
	if unlock == nil {
		return false, err
	}
	leases.Lock()
	defer leases.Unlock()
	leases.all = append(leases.all, unlock)
	return true, nil
}

// maxStarts is how many clusters start on this host at a time: more would take longer, all of them.
const maxStarts = 2

// lockStart waits until this process may start a cluster, and returns what to call when that is done.
func lockStart() (unlock func(), err error) {
	err = assert.Poll(context.Background(), "a turn to start a cluster", func() error {
		for n := range maxStarts {
			if unlock, err = tryLock(fmt.Sprintf("start-%d", n)); err != nil || unlock != nil {
				return err
			}
		}
		return fmt.Errorf("%d others start on this host", maxStarts)
	})
	return unlock, err
}
