// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package tree

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// describe returns all that belongs to the files below a folder, by their paths.
func describe(t *testing.T, root string) map[string]any {
	t.Helper()
	all, first := map[string]any{}, map[uint64]string{}
	assert.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		assert.NoError(t, err)
		name, err := filepath.Rel(root, path)
		assert.NoError(t, err)
		var s unix.Stat_t
		assert.NoError(t, unix.Lstat(path, &s))
		if first[s.Ino] == "" {
			first[s.Ino] = name
		}
		attribute := make([]byte, 100)
		n, _ := unix.Lgetxattr(path, "user.a", attribute)
		target, _ := os.Readlink(path)
		var content []byte
		if s.Mode&unix.S_IFMT == unix.S_IFREG {
			content, err = os.ReadFile(path) //nolint:gosec // a folder of the test
		}
		all[name] = []any{s.Mode, s.Uid, s.Gid, s.Rdev, s.Mtim, first[s.Ino], string(attribute[:max(n, 0)]), target, string(content)}
		return err
	}))
	return all
}

// TestCopy checks that a copy has all that its source has.
func TestCopy(t *testing.T) {
	t.Parallel()
	from, to := t.TempDir(), t.TempDir()
	in := func(name string) string { return filepath.Join(from, name) }
	old := []unix.Timespec{{Sec: 1000}, {Sec: 2000, Nsec: 3000}}
	assert.NoError(t, errors.Join(
		os.Mkdir(in("folder"), 0o755), os.WriteFile(in("folder/file"), bytes.Repeat([]byte("x"), 100_000), 0o600),
		os.Link(in("folder/file"), in("other name")), os.Symlink("/etc/passwd", in("link")), os.Symlink("folder", in("folder link")),
		unix.Mknod(in("fifo"), unix.S_IFIFO|0o640, 0), os.WriteFile(in("set-user-ID"), nil, 0o755), unix.Chmod(in("set-user-ID"), 0o4711),
		os.Mkdir(in("sticky"), 0o700), unix.Chmod(in("sticky"), 0o1777), unix.Chmod(from, 0o2750),
	))
	err := unix.Setxattr(in("folder/file"), "user.a", []byte("value"), 0)
	assert.True(t, err == nil || errors.Is(err, unix.ENOTSUP), "an attribute: %v", err)
	if os.Getuid() == 0 {
		assert.NoError(t, errors.Join(os.Lchown(in("link"), 5, 6), os.Chown(in("folder"), 7, 8), os.Chown(from, 9, 10), unix.Chmod(from, 0o2750), unix.Mknod(in("device"), unix.S_IFCHR|0o600, 0x103)))
	}
	for _, name := range []string{"folder/file", "link", "folder", "."} {
		assert.NoError(t, unix.UtimesNanoAt(unix.AT_FDCWD, in(name), old, unix.AT_SYMLINK_NOFOLLOW))
	}
	folder, err := os.Open(to)
	assert.NoError(t, err)
	defer func() { _ = folder.Close() }()
	assert.NoError(t, Copy(from, fmt.Sprintf("/proc/self/fd/%d", folder.Fd())))
	got, want := describe(t, to), describe(t, from)
	assert.True(t, reflect.DeepEqual(got, want), "the copy is %v, want %v", got, want)
}

// TestFailure checks that a copy which did not succeed says where it ended.
func TestFailure(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	assert.NoError(t, os.WriteFile(filepath.Join(from, "file"), nil, 0o600))
	assert.ErrorSays(t, "a copy to where nothing is", Copy(from, filepath.Join(from, "none")), "copy "+from+"/file")
	assert.ErrorSays(t, "a copy of nothing", Copy(filepath.Join(from, "none"), t.TempDir()), "no such file")
}
