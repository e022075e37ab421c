// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/driver/fake/faketest"
	"cloudnative.tw/drover/test/assert"
)

// TestSuspendedLeaderBlocksOneServer checks that a leader that was suspended while it
// held a server's lock delays the next leader on that server only.
func TestSuspendedLeaderBlocksOneServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Dir: dir})
	assert.NoError(t, faketest.EnsureWithEpoch(t, d, "held", 5))
	halted, err := os.Open(filepath.Join(dir, "locks", "held"))
	assert.NoError(t, err)
	assert.NoError(t, syscall.Flock(int(halted.Fd()), syscall.LOCK_EX))
	if err := faketest.EnsureWithEpoch(t, d, "free", 6); err != nil {
		t.Errorf("the next leader, on another server: %v", err)
	}
	assert.ErrorIs(t, "the next leader, on that server", faketest.EnsureWithEpoch(t, d, "held", 6), driver.ErrRetry)
	assert.NoError(t, errors.Join(syscall.Flock(int(halted.Fd()), syscall.LOCK_UN), halted.Close()))
	assert.ErrorIs(t, "the old leader", faketest.EnsureWithEpoch(t, d, "held", 5), driver.ErrFenced)
	if err := faketest.EnsureWithEpoch(t, d, "held", 6); err != nil {
		t.Errorf("the next leader, on that server: %v", err)
	}
}

// TestEpochsAreBounded checks that the folder does not grow with every leader.
func TestEpochsAreBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c/../c", Dir: dir})
	for epoch := range uint64(300) {
		assert.NoError(t, faketest.EnsureWithEpoch(t, d, "one", 1000+epoch))
	}
	entries, err := os.ReadDir(filepath.Join(dir, "epochs", "c%2F..%2Fc"))
	if err != nil || len(entries) == 0 || len(entries) > 100 {
		t.Errorf("there are %d epochs, %v: want 1 to 100", len(entries), err)
	}
	assert.ErrorIs(t, "the old leader", faketest.EnsureWithEpoch(t, d, "one", 1298), driver.ErrFenced)
	if _, err := os.Stat(filepath.Join(dir, "epochs", "c%2F..%2Fc", fmt.Sprint(1299))); err != nil {
		t.Error(err)
	}
}

// TestEpochZero covers a command line tool that acts while no leader runs.
func TestEpochZero(t *testing.T) {
	t.Parallel()
	d := faketest.OpenDriver(t, fake.Options{ClusterID: "c", Dir: t.TempDir()})
	assert.NoError(t, faketest.EnsureWithEpoch(t, d, "one", 5))
	if err := d.Delete(t.Context(), driver.Target{UID: "one"}, false); err != nil {
		t.Errorf("Delete without an epoch: %v", err)
	}
}
