// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/enginedir"
)

func (s *dirStore) watch() (*mailbox, func(), error) {
	_ = s.dir.MakeFolders()
	w, err := s.notify()
	if err != nil {
		return nil, nil, driver.Errorf(driver.ErrUnavailable, "watching the fake driver's folder: %w", err)
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
	// Only now: a folder that goes from here on closes the mailbox. Whoever opens
	// a watch starts anew, so this is where another engine is accepted.
	if _, err := s.engineID(); err != nil {
		stop()
		return nil, nil, err
	}
	go s.feed(w, box)
	return box, stop, nil
}

func (s *dirStore) notify() (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	for _, dir := range []string{s.dir.Path(), s.dir.Path(retainedDir)} {
		if err := w.Add(dir); err != nil {
			_ = w.Close()
			return nil, err
		}
	}
	return w, nil
}

// feed puts what happens in the folder into box until w is closed. An error
// means that events were lost, and ends it too.
func (s *dirStore) feed(w *fsnotify.Watcher, box *mailbox) {
	defer box.close()
	for {
		select {
		case event, open := <-w.Events:
			if !open || s.isEnd(event) {
				return
			}
			if uid, _, ok := uidOf(filepath.Base(event.Name)); ok && event.Op != fsnotify.Chmod {
				box.put(uid)
			}
		case err := <-w.Errors:
			_ = err // Whatever it is, who watches has to list again.
			return
		}
	}
}

// isEnd : the folder, or its identity, is not what it was.
func (s *dirStore) isEnd(event fsnotify.Event) bool {
	switch event.Name {
	case s.dir.Path(), s.dir.Path(retainedDir):
		return event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)
	case s.dir.Path(enginedir.IDFile):
		return event.Op != fsnotify.Chmod
	}
	return false
}
