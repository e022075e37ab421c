// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"path/filepath"
	"slices"

	"github.com/fsnotify/fsnotify"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inotify"
)

// Notify watches the folder and some of its sub-folders. It pins the engine that is in
// the folder now (see ID), because a caller that opens a watch lists all servers again.
func (d *Dir) Notify(subs ...string) (*fsnotify.Watcher, error) {
	_ = d.MakeFolders()
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, driver.Errorf(driver.ErrUnavailable, "watching %s: %w", d.name, inotify.Explain(err))
	}
	for _, sub := range append(subs, "") {
		if err := w.Add(d.Path(sub)); err != nil {
			_ = w.Close()
			return nil, driver.Errorf(driver.ErrUnavailable, "watching %s: %w", d.name, inotify.Explain(err))
		}
	}
	// The ID is read last, so that a later removal of the folder is an event of the watch.
	if _, err := d.ID(); err != nil {
		_ = w.Close()
		return nil, err
	}
	return w, nil
}

// IsEnd reports whether an event is the removal or replacement of the folder, of one of
// its sub-folders or of the identity.
func (d *Dir) IsEnd(event fsnotify.Event) bool {
	switch sub, _ := filepath.Rel(d.path, event.Name); {
	case sub == IDFile:
		return event.Op != fsnotify.Chmod
	case sub == ".", slices.Contains(d.subs, sub):
		return event.Has(fsnotify.Remove) || event.Has(fsnotify.Rename)
	}
	return false
}
