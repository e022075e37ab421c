// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package download

import "slices"

// hasTurn reports whether the fetch may begin, or has begun.
func (f *Fetch) hasTurn() bool {
	select {
	case <-f.turn:
		return true
	default:
		return false
	}
}

// admit starts the fetches whose turn it is, in the order of arrival. It requires
// the lock to be held.
func (b *Tracker) admit() {
	b.queue = slices.DeleteFunc(b.queue, func(f *Fetch) bool {
		if !b.hasRoom(f.namespace) {
			return false
		}
		b.active[f.namespace]++
		f.doing = f.what
		close(f.turn)
		return true
	})
}

// hasRoom reports whether a fetch for a namespace may begin. No namespace takes all
// places, so that downloads that never end only delay others of their own namespace.
func (b *Tracker) hasRoom(namespace string) bool {
	all := 0
	for _, n := range b.active {
		all += n
	}
	return b.AtOnce == 0 || all < b.AtOnce && b.active[namespace] < max(b.AtOnce-1, 1)
}

// leave frees a fetch's place for another, or removes it from the queue.
func (b *Tracker) leave(f *Fetch) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f.hasTurn() {
		if b.active[f.namespace]--; b.active[f.namespace] == 0 {
			delete(b.active, f.namespace)
		}
	}
	b.queue = slices.DeleteFunc(b.queue, func(other *Fetch) bool { return other == f })
	b.admit()
}
