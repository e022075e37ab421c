// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"maps"
	"slices"
	"sync"
)

// SyncMap is a map that is safe for concurrent use. Drivers use it to remember state of each
// server. Unlike sync.Map it is type-safe, and Update can change a value depending on the
// present value. The zero value is empty.
type SyncMap[K comparable, V any] struct {
	mu      sync.Mutex
	entries map[K]V
}

// Load returns the value of a key, and whether there is one.
func (m *SyncMap[K, V]) Load(key K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	value, ok := m.entries[key]
	return value, ok
}

// Store sets the value of a key.
func (m *SyncMap[K, V]) Store(key K, value V) {
	m.Update(key, func(V, bool) (V, bool) { return value, true })
}

// LoadOrStore returns the present value of a key, or else stores the given one.
func (m *SyncMap[K, V]) LoadOrStore(key K, value V) (actual V, loaded bool) {
	m.Update(key, func(present V, ok bool) (V, bool) {
		if actual, loaded = value, ok; ok {
			actual = present
		}
		return actual, true
	})
	return actual, loaded
}

// LoadAndDelete deletes a key and returns the value that it had.
func (m *SyncMap[K, V]) LoadAndDelete(key K) (value V, loaded bool) {
	m.Update(key, func(present V, ok bool) (V, bool) {
		value, loaded = present, ok
		return present, false
	})
	return value, loaded
}

// Update stores the value that change returns for the present value of a key, or deletes the
// key if keep is false. No other call happens in between, so change must not use the map.
func (m *SyncMap[K, V]) Update(key K, change func(present V, ok bool) (value V, keep bool)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	present, ok := m.entries[key]
	value, keep := change(present, ok)
	if !keep {
		delete(m.entries, key)
		return
	}
	if m.entries == nil {
		m.entries = map[K]V{}
	}
	m.entries[key] = value
}

// Delete deletes a key.
func (m *SyncMap[K, V]) Delete(key K) { m.LoadAndDelete(key) }

// DeleteFunc deletes the entries for which del returns true, such as the servers that a
// complete list did not find.
func (m *SyncMap[K, V]) DeleteFunc(del func(K, V) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.entries, del)
}

// Keys returns the keys in arbitrary order.
func (m *SyncMap[K, V]) Keys() []K {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Collect(maps.Keys(m.entries))
}

// Len returns the number of entries.
func (m *SyncMap[K, V]) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.entries)
}
