// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package statedir

import (
	"os"
	"path/filepath"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/crashpoint"
)

const fileMode = 0o600

// stagingFolder returns the folder where files and folders are made before they are moved into place.
func (d *Dir) stagingFolder(volatile bool) atomicfile.Folder {
	return atomicfile.Folder{Path: d.Path(tmpDir), Volatile: volatile}
}

// Create creates a file, completely or not at all. It fails if the file exists.
func (d *Dir) Create(path string, content []byte) error {
	return d.stagingFolder(d.Volatile).Create(path, content, fileMode)
}

// Replace creates or replaces a file, completely or not at all. After a power cut
// the file has either the old content or the new.
func (d *Dir) Replace(path string, content []byte) error { return d.ReplaceIf(path, content, nil) }

// ReplaceIf calls check immediately before it replaces the file, and does nothing if check fails.
func (d *Dir) ReplaceIf(path string, content []byte, check func() error) error {
	return d.stagingFolder(d.Volatile).Replace(path, content, fileMode, check)
}

// ReplaceVolatile does the same as Replace, for content that may be lost in a power cut.
func (d *Dir) ReplaceVolatile(path string, content []byte) error {
	return d.stagingFolder(true).Replace(path, content, fileMode, nil)
}

// Sync flushes the entries of a folder to the disk.
func (d *Dir) Sync(folder string) error {
	if d.Volatile {
		return nil
	}
	return atomicfile.SyncFolder(folder)
}

// Install moves a complete folder into place. After a power cut the folder is there
// completely or not at all.
func (d *Dir) Install(folder, place string) error {
	if err := d.Sync(folder); err != nil {
		return err
	}
	point := crashpoint.Begin("install", place)
	err := os.Rename(folder, place)
	point.End()
	if err != nil {
		return err
	}
	return d.Sync(filepath.Dir(place))
}

// Temp creates a folder whose content is moved into place once it is complete, and
// returns a function that removes the folder. The next Temp or Open removes the folders
// that killed processes left.
func (d *Dir) Temp() (path string, remove func(), err error) {
	d.sweepStaging()
	return d.stagingFolder(d.Volatile).MakeFolder()
}

// Discard removes a file or folder. The path is free at once, even if the removal of
// the content takes long or is interrupted. Discard needs no free space on the disk.
func (d *Dir) Discard(path string) error { return d.stagingFolder(d.Volatile).Discard(path) }

// sweepStaging removes the unfinished files and folders of killed processes.
func (d *Dir) sweepStaging() { _ = d.stagingFolder(d.Volatile).Sweep() }
