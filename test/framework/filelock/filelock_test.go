// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestLock checks that only one holder has a lock at a time, until it unlocks.
func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "made", "lock")
	unlock, err := Lock(path)
	assert.NoError(t, err)
	second, err := TryLock(path)
	assert.True(t, second == nil && err == nil, "a second lock: taken %t, error %v", second != nil, err)
	unlock()
	unlock, err = TryLock(path)
	assert.Require(t, unlock != nil, "a lock is not free after unlock: %v", err)
	unlock()
}
