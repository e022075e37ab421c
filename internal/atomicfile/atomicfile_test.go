// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestWriteReplacesContentAndMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, content := range []string{"first, the longer one", "second"} {
		assert.NoError(t, Write(path, []byte(content), 0o600))
		wantFile(t, path, content, 0o600)
	}
	names := listNames(t, filepath.Dir(path))
	assert.True(t, slices.Equal(names, []string{"file"}), "left behind: %v", names)
}

func TestFailedWriteKeepsOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	// A non-empty folder cannot be replaced.
	assert.NoError(t, os.MkdirAll(filepath.Join(path, "inside"), 0o700))
	assert.Require(t, Write(path, []byte("new"), 0o600) != nil, "no error")
	names := listNames(t, filepath.Dir(path))
	assert.True(t, slices.Equal(names, []string{"file"}), "left behind: %v", names)
}

func TestUpdateWritesOnlyChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, Update(path, []byte("one"), 0o600))
	before := statFile(t, path)
	assert.NoError(t, Update(path, []byte("one"), 0o600))
	assert.True(t, os.SameFile(before, statFile(t, path)), "the same content was written again")
	assert.NoError(t, Update(path, []byte("two"), 0o600))
	wantFile(t, path, "two", 0o600)
}

func TestUpdateRepairsMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, os.WriteFile(path, []byte("one"), 0o644))
	assert.NoError(t, Update(path, []byte("one"), 0o600))
	wantFile(t, path, "one", 0o600)
}

func TestSweepRemovesUnlockedFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".tmp-file-123", "file", ".hidden"} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	assert.NoError(t, Sweep(dir))
	names := listNames(t, dir)
	assert.True(t, slices.Equal(names, []string{".hidden", "file"}), "left: %v", names)
}

func wantFile(t *testing.T, path, content string, perm fs.FileMode) {
	t.Helper()
	data, err := os.ReadFile(path)
	assert.NoError(t, err)
	assert.Equal(t, "content", string(data), content)
	assert.Equal(t, "mode", statFile(t, path).Mode().Perm(), perm)
}

func statFile(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	info, err := os.Stat(path)
	assert.NoError(t, err)
	return info
}

func listNames(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestSweepKeepsLockedFiles checks this for any process that makes it, in a
// folder that has other things too.
func TestSweepKeepsLockedFiles(t *testing.T) {
	folder := Folder{Path: t.TempDir(), Prefix: tempPrefix}
	half, err := folder.writeTemp([]byte("half"), 0o600)
	assert.NoError(t, err)
	path, remove, err := folder.MakeFolder()
	assert.NoError(t, err)
	assert.NoError(t, Sweep(folder.Path))
	names := listNames(t, folder.Path)
	assert.True(t, len(names) == 2, "left: %v, want %s and %s", names, half.Name(), path)
	half.removeAndUnlock()
	remove()
	names = listNames(t, folder.Path)
	assert.True(t, len(names) == 0, "left: %v", names)
}

// TestReadIsCareful checks that who may write to a folder can neither delay a reader there, nor
// fill its memory, nor lead it to another file.
func TestReadIsCareful(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	assert.NoError(t, errors.Join(
		os.WriteFile(at("file"), []byte("content"), 0o600), syscall.Mkfifo(at("pipe"), 0o600), os.Mkdir(at("folder"), 0o700),
		os.Symlink(at("file"), at("link")), os.Symlink("/dev/zero", at("device")),
	))
	for name, message := range map[string]string{
		"file": "", "pipe": "not a regular file", "folder": "not a regular file", "link": "not a regular file",
		"device": "not a regular file", "missing": "no such file",
	} {
		content, info, err := Read(at(name), 7)
		assert.True(t, message != "" || (err == nil && string(content) == "content" && info.Size() == 7), "%s: got %q, %v", name, content, err)
		assert.True(t, message == "" || (err != nil && strings.Contains(err.Error(), message)), "%s: got %q, %v, want %q", name, content, err, message)
	}
	assert.ErrorSays(t, "a file that is too large", third(Read(at("file"), 6)), at("file")+" has more than 6 bytes")
	assert.ErrorSays(t, "a device", third(Read("/dev/zero", 7)), "not a regular file")
}

func third[A, B any](_ A, _ B, err error) error { return err }

// TestSweepIsNotDelayed checks that Sweep does not block on a pipe in a staging folder that
// nobody writes to.
func TestSweepIsNotDelayed(t *testing.T) {
	dir := t.TempDir()
	assert.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	assert.NoError(t, Folder{Path: dir}.Sweep())
}
