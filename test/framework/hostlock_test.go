// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"fmt"
	"os"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestHostLock checks that one process has a lock at a time, and only until it gives it back.
func TestHostLock(t *testing.T) {
	t.Parallel()
	name := fmt.Sprintf("test-%d", os.Getpid())
	first, err := tryLock(name)
	if first == nil {
		t.Fatalf("a new lock is not free: %v", err)
	}
	t.Cleanup(func() { _ = os.Remove(first.Name()) })
	if second, err := tryLock(name); second != nil || err != nil {
		t.Errorf("a lock that is taken gives %v, %v", second, err)
	}
	assert.NoError(t, first.Close())
	third, err := tryLock(name)
	if third == nil {
		t.Fatalf("a lock that was given back is not free: %v", err)
	}
	_ = third.Close()
}

// TestLeasedPortsDiffer checks that no port is given twice, even while no process listens on it.
func TestLeasedPortsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[int32]bool{}
	for range 200 {
		port := FreePort(t)
		if seen[port] {
			t.Fatalf("port %d is given twice", port)
		}
		seen[port] = true
	}
}
