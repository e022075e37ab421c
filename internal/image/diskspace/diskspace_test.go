// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskspace_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/test/assert"
)

const mebibyte = 1 << 20

// newDisk mounts a disk of 20 MiB, of which 1 MiB is reserved.
func newDisk(t *testing.T) *diskspace.Disk {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("drover-test", dir, "tmpfs", 0, "size=20M"); err != nil {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	return &diskspace.Disk{Dir: dir}
}

func newFile(t *testing.T, d *diskspace.Disk, name string) *diskspace.File {
	t.Helper()
	f, err := os.Create(filepath.Join(d.Dir, name))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return &diskspace.File{File: f, Disk: d}
}

// TestAllocate checks that what one has allocated is not there for another, until it is given back, and that nobody gets the
// reserve.
func TestAllocate(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	release, err := d.Allocate(12 * mebibyte)
	assert.NoError(t, err)
	_, err = d.Allocate(8 * mebibyte)
	lacks, ok := errors.AsType[*diskspace.FullError](err)
	assert.True(t, ok && lacks.Needed == 9*mebibyte, "another gets 8 MiB: %v", err)
	assert.ErrorSays(t, "Allocate", err, "8388608 bytes are free on the disk of "+d.Dir+", of which 1048576 bytes must stay free")
	other, err := d.Allocate(7 * mebibyte)
	assert.NoError(t, err)
	other()
	release()
	release, err = d.Allocate(19 * mebibyte)
	assert.NoError(t, err)
	release()
	assert.ErrorSays(t, "Allocate", assert.ErrorOf(d.Allocate(19*mebibyte+1)), "20971520 bytes are free")
}

// TestFiles checks that files which are written at the same time leave the reserve, and that a hole frees space.
func TestFiles(t *testing.T) {
	t.Parallel()
	d := newDisk(t)
	noise := bytes.Repeat([]byte("noise"), 8*mebibyte/5)
	var all sync.WaitGroup
	files := []*diskspace.File{newFile(t, d, "a"), newFile(t, d, "b"), newFile(t, d, "c")}
	errs := make([]error, len(files))
	for n, f := range files {
		all.Go(func() { _, errs[n] = f.WriteAt(noise, 0) })
	}
	all.Wait()
	free, err := d.Free()
	assert.NoError(t, err)
	assert.True(t, free >= mebibyte && errors.Join(errs...) != nil, "%d bytes are free, and the errors are %v", free, errs)
	assert.NoError(t, files[0].Clear(0, 8*mebibyte))
	assert.NoError(t, assert.ErrorOf(files[1].WriteAt(noise[:mebibyte], 8*mebibyte)))
	assert.NoError(t, files[1].Truncate(4*mebibyte))
	info, err := files[1].File.Stat()
	assert.True(t, err == nil && info.Size() == 4*mebibyte && files[1].Written() >= 1*mebibyte, "it has %+v, %v", info, err)
}
