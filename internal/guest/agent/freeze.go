// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package agent

import (
	"fmt"
	"sync"
	"time"
)

// maxFreeze is how long a disk may be held without being asked for once more.
const maxFreeze = time.Minute

// freezer thaws a disk in time, whatever becomes of the host.
type freezer struct {
	mu    sync.Mutex
	timer *time.Timer
}

func (f *freezer) start(disk Disk, limit time.Duration) error {
	if limit <= 0 || limit > maxFreeze {
		return fmt.Errorf("the disk is to be held for %s, want more than 0 and at most %s", limit, maxFreeze)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer == nil {
		if err := disk.Freeze(); err != nil {
			return fmt.Errorf("hold the disk: %w", err)
		}
	} else {
		f.timer.Stop()
	}
	f.timer = time.AfterFunc(limit, func() { _ = f.thaw(disk) })
	return nil
}

// thaw ends a freeze, if there is one.
func (f *freezer) thaw(disk Disk) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.timer == nil {
		return nil
	}
	f.timer.Stop()
	f.timer = nil
	return disk.Thaw()
}
