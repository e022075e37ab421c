// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/atomicfile"
)

const fileMode = 0o600

// tmp is where things are made that are moved into place once they are whole.
func (d *Dir) tmp(fleeting bool) atomicfile.Folder {
	return atomicfile.Folder{Path: d.Path(tmpDir), Fleeting: fleeting}
}

// Create makes a file, whole or not at all, and fails if it is there.
func (d *Dir) Create(path string, content []byte) error {
	return d.tmp(d.Fleeting).Create(path, content, fileMode)
}

// Replace makes a file or replaces it, whole or not at all. After a power cut it
// has the one content or the other.
func (d *Dir) Replace(path string, content []byte) error { return d.ReplaceIf(path, content, nil) }

// ReplaceIf is Replace unless check, the last thing before, has an error.
func (d *Dir) ReplaceIf(path string, content []byte, check func() error) error {
	return d.tmp(d.Fleeting).Replace(path, content, fileMode, check)
}

// ReplaceFleeting is Replace for what means nothing after a power cut.
func (d *Dir) ReplaceFleeting(path string, content []byte) error {
	return d.tmp(true).Replace(path, content, fileMode, nil)
}

// Sync waits until what was put into a folder is on the disk by its name.
func (d *Dir) Sync(folder string) error {
	if d.Fleeting {
		return nil
	}
	return atomicfile.SyncFolder(folder)
}

// Install moves a folder that is whole into its place, where a power cut finds it
// whole too.
func (d *Dir) Install(folder, place string) error {
	if err := d.Sync(folder); err != nil {
		return err
	}
	if err := os.Rename(folder, place); err != nil {
		return err
	}
	return d.Sync(filepath.Dir(place))
}

// Temp makes a folder for something that is moved into place once it is whole,
// and returns what removes it again. What a process that was killed left there is
// swept by the next that makes one, or that opens the engine.
func (d *Dir) Temp() (path string, remove func(), err error) {
	d.sweep()
	return d.tmp(d.Fleeting).MakeFolder()
}

// Discard removes a file or folder, so that it is gone at once even where its
// removal takes a while or is cut off. It needs no room on the disk.
func (d *Dir) Discard(path string) error { return d.tmp(d.Fleeting).Discard(path) }

// sweep removes what processes that were killed left half done.
func (d *Dir) sweep() { _ = d.tmp(d.Fleeting).Sweep() }
