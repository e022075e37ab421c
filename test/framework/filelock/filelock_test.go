// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package filelock

import (
	"path/filepath"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestLock checks that one has a lock at a time, and only until it gives it back.
func TestLock(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "made", "lock")
	unlock, err := Lock(path)
	assert.NoError(t, err)
	second, err := TryLock(path)
	assert.True(t, second == nil && err == nil, "a lock that is taken gives %t, %v", second != nil, err)
	unlock()
	unlock, err = TryLock(path)
	assert.Require(t, unlock != nil, "a lock that was given back is not free: %v", err)
	unlock()
}
