// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"path/filepath"

	"github.com/fsnotify/fsnotify"
)

func (s *dirStore) watch() (*mailbox, func(), error) {
	w, err := s.dir.Notify(retainedDir)
	if err != nil {
		return nil, nil, err
	}
	box := newMailbox()
	s.mu.Lock()
	s.boxes[box] = true
	s.mu.Unlock()
	stop := func() {
		s.mu.Lock()
		delete(s.boxes, box)
		s.mu.Unlock()
		_ = w.Close()
	}
	go s.feed(w, box)
	return box, stop, nil
}

// feed puts the UIDs of changed files into box until w is closed. An error means
// that events were lost, and ends feed too.
func (s *dirStore) feed(w *fsnotify.Watcher, box *mailbox) {
	defer box.close()
	for {
		select {
		case event, open := <-w.Events:
			if !open || s.dir.IsEnd(event) {
				return
			}
			if uid, _, ok := uidOf(filepath.Base(event.Name)); ok && event.Op != fsnotify.Chmod {
				box.put(uid)
			}
		case err := <-w.Errors:
			_ = err // Whatever it is, the caller of Watch has to list again.
			return
		}
	}
}
