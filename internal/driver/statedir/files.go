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

// stagingFolder is the folder where things are made before they are moved into place.
func (d *Dir) stagingFolder(volatile bool) atomicfile.Folder {
	return atomicfile.Folder{Path: d.Path(tmpDir), Volatile: volatile}
}

// Create makes a file, completely or not at all, and fails if it exists.
func (d *Dir) Create(path string, content []byte) error {
	return d.stagingFolder(d.Volatile).Create(path, content, fileMode)
}

// Replace creates or replaces a file, completely or not at all. After a power cut
// it has either the old content or the new.
func (d *Dir) Replace(path string, content []byte) error { return d.ReplaceIf(path, content, nil) }

// ReplaceIf is Replace, unless check returns an error; check runs last before the write.
func (d *Dir) ReplaceIf(path string, content []byte, check func() error) error {
	return d.stagingFolder(d.Volatile).Replace(path, content, fileMode, check)
}

// ReplaceVolatile is Replace for content that means nothing after a power cut.
func (d *Dir) ReplaceVolatile(path string, content []byte) error {
	return d.stagingFolder(true).Replace(path, content, fileMode, nil)
}

// Sync waits until the entries of a folder are on the disk.
func (d *Dir) Sync(folder string) error {
	if d.Volatile {
		return nil
	}
	return atomicfile.SyncFolder(folder)
}

// Install moves a complete folder into place, such that it is complete after a
// power cut too.
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

// Temp creates a folder for something that is moved into place once it is complete,
// and returns a function that removes it. What a killed process left there is swept
// by the next Temp or Open.
func (d *Dir) Temp() (path string, remove func(), err error) {
	d.sweepStaging()
	return d.stagingFolder(d.Volatile).MakeFolder()
}

// Discard removes a file or folder. It is gone at once even if its removal takes a
// while or is interrupted. Discard needs no free space on the disk.
func (d *Dir) Discard(path string) error { return d.stagingFolder(d.Volatile).Discard(path) }

// sweepStaging removes what killed processes left unfinished.
func (d *Dir) sweepStaging() { _ = d.stagingFolder(d.Volatile).Sweep() }
