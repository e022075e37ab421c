// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package datadisk

import (
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/test/assert"
)

func write(t *testing.T, size int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "disk"))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	assert.NoError(t, Write(f, size))
	return f
}

// TestWrite checks that a disk is a file system in order, that it takes little of the host's disk, and
// that two are alike.
func TestWrite(t *testing.T) {
	t.Parallel()
	var sums [2][sha256.Size]byte
	for i := range sums {
		f := write(t, 10<<30)
		content, err := io.ReadAll(io.LimitReader(f, MinBytes))
		assert.NoError(t, err)
		sums[i] = sha256.Sum256(content)
		assert.True(t, [16]byte(content[1024+0x68:]) == config.BlankUUID, "the UUID is %x", content[1024+0x68:1024+0x78])
		info, err := f.Stat()
		assert.NoError(t, err)
		blocks := info.Sys().(*syscall.Stat_t).Blocks
		assert.True(t, info.Size() == 10<<30 && blocks*512 <= 1<<20, "the disk has %d bytes and takes up %d", info.Size(), blocks*512)
		checkFileSystem(t, f.Name())
	}
	assert.True(t, sums[0] == sums[1], "two disks differ")
	assert.True(t, len(template) <= 10_000, "the template has %d bytes", len(template))
}

// checkFileSystem has e2fsck look at a file system, where it is installed: its package is Debian's
// essential one.
func checkFileSystem(t *testing.T, path string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "e2fsck", "-f", "-n", path).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("there is no e2fsck")
	}
	assert.True(t, err == nil, "e2fsck: %v\n%s", err, out)
}

// TestOverwrite checks that nothing of what was in the file is left.
func TestOverwrite(t *testing.T) {
	t.Parallel()
	f := write(t, MinBytes)
	_, err := f.WriteAt([]byte("left over"), 30<<20)
	assert.NoError(t, err)
	assert.NoError(t, Write(f, MinBytes))
	got := make([]byte, 9)
	_, err = f.ReadAt(got, 30<<20)
	assert.True(t, err == nil && string(got) == string(make([]byte, 9)), "%q is left, %v", got, err)
}

// TestSizes checks which sizes a disk may have.
func TestSizes(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{0, MinBytes - blockSize, MinBytes + 1, MaxBytes + blockSize} {
		assert.ErrorSays(t, "a disk", Write(nil, size), "want a multiple of 4096 from 67108864")
	}
	for size, want := range map[int64]int64{0: MinBytes, MinBytes + 1: MinBytes + blockSize, 1 << 30: 1 << 30} {
		got := RoundUp(size)
		assert.True(t, got == want, "%d is rounded to %d, want %d", size, got, want)
	}
}
