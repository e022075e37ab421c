// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// newFolder returns a folder that is not mounted, and its path.
func newFolder(t *testing.T) (*folder, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "folder")
	assert.NoError(t, os.Mkdir(dir, 0o700))
	root, err := os.OpenRoot(dir)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return (&Set{UID: os.Getuid(), GID: os.Getgid()}).newFolder(root), dir
}

// contentOf returns a content with files of the mode 0644 and, as their text, the revision.
func contentOf(revision string, paths ...string) Content {
	c := Content{Path: "/folder", Revision: revision}
	for _, p := range paths {
		c.Files = append(c.Files, File{Path: p, Mode: 0o644, Data: []byte(revision)})
	}
	return c
}

// wantFiles checks that a folder shows the files with a text, and nothing else.
func wantFiles(t *testing.T, dir, text string, paths ...string) {
	t.Helper()
	names := map[string]bool{dataLink: true}
	for _, p := range paths {
		got, err := os.ReadFile(filepath.Join(dir, p))
		assert.NoError(t, err)
		assert.Equal(t, p, string(got), text)
		top, _, _ := strings.Cut(p, "/")
		names[top] = true
	}
	target, err := os.Readlink(filepath.Join(dir, dataLink))
	assert.NoError(t, err)
	names[target] = true
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	for _, e := range entries {
		assert.True(t, names[e.Name()], "the folder also has %s", e.Name())
	}
}

// TestWrite checks files with folders and modes, and their replacement.
func TestWrite(t *testing.T) {
	t.Parallel()
	f, dir := newFolder(t)
	first := contentOf("1", "a", "b/c/d", "b/e")
	first.Files[0].Mode = 0o400
	assert.NoError(t, f.write(first))
	wantFiles(t, dir, "1", "a", "b/c/d", "b/e")
	info, err := os.Stat(filepath.Join(dir, "a"))
	assert.NoError(t, err)
	assert.Equal(t, "mode", info.Mode(), fs.FileMode(0o400))
	open, err := os.Open(filepath.Join(dir, "b/e"))
	assert.NoError(t, err)
	defer func() { _ = open.Close() }()

	assert.NoError(t, f.write(contentOf("2", "b/e", "new")))
	wantFiles(t, dir, "2", "b/e", "new")
	text := make([]byte, 1)
	_, err = open.Read(text)
	assert.True(t, err == nil && string(text) == "1", "an open file reads %q, %v", text, err)

	same := contentOf("2", "b/e", "new")
	same.Revision = "3"
	before := f.current
	assert.NoError(t, f.write(same))
	assert.True(t, f.current == before && f.revision == "3", "the same files are written again, or the revision is %s", f.revision)
	assert.NoError(t, f.write(contentOf("4")))
	wantFiles(t, dir, "4")
}

// TestConsistent checks that a reader who goes through one folder never sees files of two contents.
func TestConsistent(t *testing.T) {
	t.Parallel()
	f, dir := newFolder(t)
	assert.NoError(t, f.write(contentOf("0", "a", "b")))
	done := make(chan error)
	go func() {
		for n := range 200 {
			if err := f.write(contentOf(fmt.Sprint(n), "a", "b")); err != nil {
				done <- err
			}
		}
		close(done)
	}()
	for {
		select {
		case err := <-done:
			assert.NoError(t, err)
			return
		default:
		}
		current, err := os.Readlink(filepath.Join(dir, dataLink))
		assert.NoError(t, err)
		a, errA := os.ReadFile(filepath.Join(dir, current, "a"))
		b, errB := os.ReadFile(filepath.Join(dir, current, "b"))
		if errors.Join(errA, errB) == nil { // else it was replaced meanwhile
			assert.Equal(t, "b beside a", string(b), string(a))
		}
	}
}

// TestHostileGuest checks that what a guest puts into a folder leads nothing out of it, and is gone after a write.
func TestHostileGuest(t *testing.T) {
	t.Parallel()
	f, dir := newFolder(t)
	outside := filepath.Join(filepath.Dir(dir), "outside")
	assert.NoError(t, os.MkdirAll(filepath.Join(outside, "a"), 0o700))
	assert.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	for name, spoil := range map[string]func() error{
		"data link out": func() error { return replace(filepath.Join(dir, dataLink), outside) },
		"new link out":  func() error { return os.Symlink(outside, filepath.Join(dir, newLink)) },
		"file out":      func() error { return replace(filepath.Join(dir, "a"), outside+"/kept") },
		"relative out":  func() error { return replace(filepath.Join(dir, "a"), "../outside/kept") },
		"folder for link": func() error {
			return errors.Join(os.Remove(filepath.Join(dir, dataLink)), os.MkdirAll(filepath.Join(dir, dataLink, "x"), 0o700))
		},
		"loop":        func() error { return replace(filepath.Join(dir, dataLink), dataLink) },
		"all removed": func() error { return errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o700)) },
	} {
		assert.NoError(t, f.write(contentOf("before "+name, "a", "b/c")))
		assert.NoError(t, spoil())
		err := f.write(contentOf(name, "a", "b/c"))
		if name == "all removed" { // the folder that is open is another one, so nothing is written to the new one
			entries, _ := os.ReadDir(dir)
			assert.True(t, len(entries) == 0, "%s: the error is %v, and there is %v", name, err, entries)
			assert.True(t, f.checkVisible(dir) != nil, "another folder counts as this one")
			f, dir = newFolder(t)
			outside = filepath.Join(filepath.Dir(dir), "outside")
			assert.NoError(t, os.MkdirAll(filepath.Join(outside, "a"), 0o700))
			assert.NoError(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
			continue
		}
		assert.NoError(t, err)
		wantFiles(t, dir, name, "a", "b/c")
		entries, err := os.ReadDir(outside)
		assert.True(t, err == nil && len(entries) == 2, "%s: outside there is %v, %v", name, entries, err)
		kept, err := os.ReadFile(filepath.Join(outside, "kept"))
		assert.True(t, err == nil && len(kept) == 0, "%s: the file outside has %q, %v", name, kept, err)
	}
}

func replace(path, target string) error {
	return errors.Join(os.RemoveAll(path), os.Symlink(target, path))
}

// TestFailedWrite checks that files that cannot be written leave the earlier ones.
func TestFailedWrite(t *testing.T) {
	t.Parallel()
	f, dir := newFolder(t)
	assert.NoError(t, f.write(contentOf("1", "a")))
	bad := contentOf("2", "a", "a/b") // a file is also a folder
	assert.True(t, f.write(bad) != nil, "it is written")
	assert.Equal(t, "revision", f.revision, "1")
	wantFiles(t, dir, "1", "a")
	assert.NoError(t, f.write(contentOf("3", "a", "old")))
	assert.NoError(t, os.WriteFile(filepath.Join(dir, "filler"), nil, 0o600))
	assert.True(t, f.write(bad) != nil, "it is written")
	wantFiles(t, dir, "3", "a", "old") // without what a program of the image has written, which takes room
}

// TestSilentFolder checks that a look at a folder that a file system without an answer hides ends, and that only one such
// look lasts.
func TestSilentFolder(t *testing.T) {
	f, dir := newFolder(t)
	assert.NoError(t, f.write(contentOf("1", "a")))
	s := &Set{folders: map[string]*folder{dir: f}}
	assert.Equal(t, "revision", s.Revisions()[dir], "1")
	answer := make(chan struct{})
	var looks atomic.Int32
	stat = func(path string) (fs.FileInfo, error) {
		looks.Add(1)
		<-answer
		return os.Stat(path)
	}
	t.Cleanup(func() { stat = os.Stat })
	for range 3 {
		assert.Equal(t, "revision", s.Revisions()[dir], "")
	}
	assert.Equal(t, "looks", looks.Load(), 1)
	close(answer)
	f.looks <- struct{}{} // once the look has ended
	<-f.looks
	assert.Equal(t, "revision", s.Revisions()[dir], "1")
}

// TestPlaces checks that folders that links make one, or one in another, are refused.
func TestPlaces(t *testing.T) {
	t.Parallel()
	links := map[string]string{"/a": "/v/x", "/b": "/v/x", "/c": "/v/x/y", "/d": "/v", "/e": "/v/xy"}
	s := &Set{FindFolder: func(path string) (string, error) { return links[path], nil }}
	for _, path := range []string{"/a", "/b", "/c", "/d", "/e"} {
		_, err := s.findPlace(path)
		if wanted := path == "/a" || path == "/e"; wanted != (err == nil) {
			t.Errorf("%s: the error is %v", path, err)
		}
	}
}
