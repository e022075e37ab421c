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

// admitWaiting starts the fetches whose turn it is, in the order of arrival. It requires
// the lock to be held.
func (t *Tracker) admitWaiting() {
	t.queue = slices.DeleteFunc(t.queue, func(f *Fetch) bool {
		if !t.hasRoom(f.namespace) {
			return false
		}
		t.active[f.namespace]++
		f.status = f.description
		close(f.turn)
		return true
	})
}

// hasRoom reports whether a fetch for a namespace may begin. No namespace takes all
// places, so that downloads that never end only delay others of their own namespace.
func (t *Tracker) hasRoom(namespace string) bool {
	all := 0
	for _, n := range t.active {
		all += n
	}
	return t.Concurrency == 0 || all < t.Concurrency && t.active[namespace] < max(t.Concurrency-1, 1)
}

// freePlace frees a fetch's place for another, or removes it from the queue.
func (t *Tracker) freePlace(f *Fetch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if f.hasTurn() {
		if t.active[f.namespace]--; t.active[f.namespace] == 0 {
			delete(t.active, f.namespace)
		}
	}
	t.queue = slices.DeleteFunc(t.queue, func(other *Fetch) bool { return other == f })
	t.admitWaiting()
}
