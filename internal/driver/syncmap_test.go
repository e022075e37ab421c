// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"slices"
	"sync"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

func TestSyncMap(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(m *driver.SyncMap[string, int])
		want   int
		ok     bool
	}{
		"empty":                         {func(*driver.SyncMap[string, int]) {}, 0, false},
		"stored":                        {func(m *driver.SyncMap[string, int]) { m.Store("a", 1) }, 1, true},
		"stored under another key":      {func(m *driver.SyncMap[string, int]) { m.Store("b", 1) }, 0, false},
		"stored twice":                  {func(m *driver.SyncMap[string, int]) { m.Store("a", 1); m.Store("a", 2) }, 2, true},
		"deleted":                       {func(m *driver.SyncMap[string, int]) { m.Store("a", 1); m.Delete("a") }, 0, false},
		"updated":                       {func(m *driver.SyncMap[string, int]) { m.Store("a", 1); m.Update("a", increment) }, 2, true},
		"updated without a value":       {func(m *driver.SyncMap[string, int]) { m.Update("a", increment) }, 1, true},
		"deleted by an update":          {func(m *driver.SyncMap[string, int]) { m.Store("a", 1); m.Update("a", drop) }, 0, false},
		"deleted by its value":          {func(m *driver.SyncMap[string, int]) { m.Store("a", 1); m.DeleteFunc(isOne) }, 0, false},
		"not deleted by another value":  {func(m *driver.SyncMap[string, int]) { m.Store("a", 2); m.DeleteFunc(isOne) }, 2, true},
		"deleted by a value when empty": {func(m *driver.SyncMap[string, int]) { m.DeleteFunc(isOne) }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var m driver.SyncMap[string, int]
			c.change(&m)
			got, ok := m.Load("a")
			assert.True(t, got == c.want && ok == c.ok, "a is %d, %v, want %d, %v", got, ok, c.want, c.ok)
		})
	}
}

func increment(n int, _ bool) (int, bool) { return n + 1, true }
func drop(n int, _ bool) (int, bool)      { return n, false }
func isOne(_ string, n int) bool          { return n == 1 }

func TestSyncMapLoadOrStore(t *testing.T) {
	t.Parallel()
	var m driver.SyncMap[string, int]
	for _, c := range []struct {
		store, want int
		loaded      bool
	}{{1, 1, false}, {2, 1, true}} {
		got, loaded := m.LoadOrStore("a", c.store)
		assert.True(t, got == c.want && loaded == c.loaded, "storing %d: got %d, %v, want %d, %v", c.store, got, loaded, c.want, c.loaded)
	}
	keys := m.Keys()
	assert.True(t, slices.Equal(keys, []string{"a"}) && m.Len() == 1, "the keys are %q and there are %d, want a alone", keys, m.Len())
	got, loaded := m.LoadAndDelete("a")
	assert.True(t, got == 1 && loaded && m.Len() == 0, "the deleted value is %d, %v, and %d are left, want 1, true and 0", got, loaded, m.Len())
	got, loaded = m.LoadAndDelete("a")
	assert.True(t, got == 0 && !loaded, "deleted again, it is %d, %v, want 0, false", got, loaded)
}

// TestSyncMapConcurrently checks, mostly for the race detector, that no update is lost.
func TestSyncMapConcurrently(t *testing.T) {
	t.Parallel()
	var m driver.SyncMap[string, int]
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				m.Update("a", increment)
				m.Store("b", m.Len())
				m.DeleteFunc(func(key string, _ int) bool { return key == "b" })
			}
		})
	}
	all.Wait()
	got, _ := m.Load("a")
	assert.True(t, got == 800, "after 800 updates it is %d", got)
}
