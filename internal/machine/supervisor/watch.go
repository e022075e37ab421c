// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import "sync"

// watches notifies any number of callers of a change.
type watches struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change, nil if nobody waits
}

func (w *watches) notifyAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed != nil {
		close(w.changed)
		w.changed = nil
	}
}

// nextChange returns a channel that is closed at the next change.
func (w *watches) nextChange() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.changed == nil {
		w.changed = make(chan struct{})
	}
	return w.changed
}

// Changed returns a channel that is closed at the next change of the machine.
func (s *Supervisor) Changed() <-chan struct{} { return s.watches.nextChange() }
