// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// streamWith returns the stream of a file.
func streamWith(t testing.TB, content string) *bytes.Buffer {
	t.Helper()
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	assert.NoError(t, w.WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(content))}))
	_, err := io.WriteString(w, content)
	assert.NoError(t, errors.Join(err, w.Close()))
	return &stream
}

// copyTo copies a file to target, and returns the description of files that were overwritten.
func copyTo(t testing.TB, target, content string) string {
	t.Helper()
	to, err := DestinationOf(target, "x")
	assert.NoError(t, err)
	to.Overwritten = &Overwritten{}
	assert.NoError(t, Unpack(streamWith(t, content), to))
	return to.Overwritten.Describe()
}

func readText(t testing.TB, file string) string {
	t.Helper()
	content, err := os.ReadFile(file)
	assert.NoError(t, err)
	return string(content)
}

// TestKeptAttributes checks that a file keeps its owner, mode and attributes, and all others that had it open the old one.
func TestKeptAttributes(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	assert.NoError(t, os.WriteFile(file, []byte("old"), 0o600))
	assert.NoError(t, os.Chown(file, 1000, 1001))
	assert.NoError(t, unix.Chmod(file, 0o4750))
	assert.NoError(t, unix.Setxattr(file, "user.note", []byte("kept"), 0))
	old, err := os.Open(file)
	assert.NoError(t, err)
	defer func() { _ = old.Close() }()
	assert.Equal(t, "it says", copyTo(t, file, "new"), "")
	var stat unix.Stat_t
	note := make([]byte, 10)
	assert.NoError(t, unix.Stat(file, &stat))
	n, err := unix.Getxattr(file, "user.note", note)
	assert.NoError(t, err)
	assert.True(t, stat.Mode == unix.S_IFREG|0o4750 && stat.Uid == 1000 && stat.Gid == 1001 && string(note[:n]) == "kept",
		"it has the mode %o, the owner %d:%d and the attribute %q", stat.Mode, stat.Uid, stat.Gid, note[:n])
	before, err := io.ReadAll(old)
	got := readText(t, file)
	assert.True(t, got == "new" && string(before) == "old" && err == nil, "it has %q, and its readers %q, %v", got, before, err)
}

// TestFollowedLinks checks that a file that is copied to a link is written to the link's target.
func TestFollowedLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NoError(t, os.Mkdir(dir+"/folder", 0o700))
	assert.NoError(t, os.WriteFile(dir+"/file", []byte("old"), 0o600))
	for link, to := range map[string]string{"folder/to-file": "../file", "chain": "folder/to-file", "dangling": dir + "/new", "folder/x": "../new-x", "to-folder": "folder"} {
		assert.NoError(t, os.Symlink(to, filepath.Join(dir, link)))
	}
	for place, file := range map[string]string{"chain": "file", "dangling": "new", "to-folder": "new-x"} {
		copyTo(t, filepath.Join(dir, place), "new content of "+file)
		assert.Equal(t, "by "+place+" "+file+" has", readText(t, filepath.Join(dir, file)), "new content of "+file)
		assert.ErrorIs(t, place+" is not a link any more", assert.ErrorOf(os.Readlink(filepath.Join(dir, place))), nil)
	}
	// In a folder that is copied, links are followed for a sender who may write everywhere.
	to := Destination{Folder: dir, Name: "folder", AllowAnyLinks: true}
	assert.NoError(t, os.Symlink(dir, dir+"/folder/up"))
	assert.NoError(t, Unpack(streamOf(t, folder("x"), file("x/to-file"), folder("x/up"), file("x/up/file-2")), to))
	assert.Equal(t, "the file has", readText(t, dir+"/file"), "")
	assert.ErrorIs(t, "the folder of the link", assert.ErrorOf(os.Stat(dir+"/file-2")), nil)
	loop := dir + "/loop"
	assert.NoError(t, os.Symlink("loop", loop))
	assert.ErrorSays(t, "a loop", assert.ErrorOf(DestinationOf(loop, "x")), "too many levels of symbolic links")
}

// TestOverwritten checks files that are overwritten, since a new file would not be the same one.
func TestOverwritten(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"twin", "mounted", "source"} {
		assert.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("old content"), 0o600))
	}
	assert.NoError(t, os.Link(dir+"/twin", dir+"/other"))
	assert.NoError(t, unix.Mount(dir+"/source", dir+"/mounted", "", unix.MS_BIND, ""))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir+"/mounted", unix.MNT_DETACH)) })
	assert.NoError(t, unix.Mknod(dir+"/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3)))) //nolint:gosec // small
	for name, c := range map[string]struct{ says, file string }{
		"twin":    {`1 files were overwritten in place: "twin": it has 2 names`, "other"},
		"mounted": {`"mounted": it is a mount point`, "source"},
		"null":    {`"null": it is a device`, ""},
	} {
		assert.Contains(t, name+": it says", copyTo(t, filepath.Join(dir, name), "new"), c.says)
		if c.file == "" {
			continue
		}
		assert.Equal(t, name+": "+c.file+" has", readText(t, filepath.Join(dir, c.file)), "new")
	}
	assert.NoError(t, unix.Mkfifo(dir+"/pipe", 0o600))
	assert.ErrorSays(t, "a pipe", Unpack(streamWith(t, ""), Destination{Folder: dir, Name: "pipe"}), "is a pipe or socket")
	assert.NoError(t, os.Mkdir(dir+"/folder", 0o700))
	assert.ErrorSays(t, "a folder", Unpack(streamWith(t, ""), Destination{Folder: dir, Name: "folder"}), "is a folder")
	wantNames(t, dir, "folder mounted null other pipe source twin")
}

func wantNames(t testing.TB, dir, want string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	assert.NoError(t, err)
	names := make([]string, len(entries))
	for n, entry := range entries {
		names[n] = entry.Name()
	}
	assert.Equal(t, "there", strings.Join(names, " "), want)
}

// TestInterruptedCopies checks that a stream that is cut, and a full disk, leave the old file and nothing else.
func TestInterruptedCopies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	assert.NoError(t, unix.Mount("drover-test", dir, "tmpfs", 0, "size=1M"))
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	assert.NoError(t, os.WriteFile(dir+"/file", []byte("old"), 0o600))
	long := streamWith(t, strings.Repeat("new", 1<<20)).String()
	for says, c := range map[string]struct {
		stream io.Reader
		name   string
	}{
		"unexpected EOF":          {io.LimitReader(strings.NewReader(long), 100_000), "file"},
		"no space left on device": {strings.NewReader(long), "file"},
		"no space left":           {strings.NewReader(long), "another"},
	} {
		assert.ErrorSays(t, c.name, Unpack(c.stream, Destination{Folder: dir, Name: c.name}), says)
		got := readText(t, dir+"/file")
		assert.True(t, got == "old", "%s: the file has %d bytes", says, len(got))
		wantNames(t, dir, "file")
	}
}

// TestUnreadableFiles checks that files that vanish or cannot be read are named, and that the rest is copied.
func TestUnreadableFiles(t *testing.T) {
	t.Parallel()
	from, to := filepath.Join(t.TempDir(), "from"), t.TempDir()
	assert.NoError(t, os.MkdirAll(from+"/c/inside", 0o700))
	assert.NoError(t, os.WriteFile(from+"/a", bytes.Repeat([]byte("x"), 2*packBuffer), 0o600))
	assert.NoError(t, os.WriteFile(from+"/b", []byte("gone"), 0o600))
	assert.NoError(t, os.WriteFile(from+"/d", []byte("there"), 0o600))
	var stream bytes.Buffer
	err := Pack(writerFunc(func(p []byte) (int, error) {
		_, _ = os.Remove(from+"/b"), os.RemoveAll(from+"/c")
		return stream.Write(p)
	}), from)
	assert.ErrorSays(t, "packing", err, `2 files were left out: "b": no such file or directory; "c": no such file or directory`)
	assert.NoError(t, Unpack(&stream, Destination{Folder: to}))
	wantNames(t, to+"/from", "a d")
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestUnknownSizes checks files whose size is not the length of their content.
func TestUnknownSizes(t *testing.T) {
	t.Parallel()
	for file, content := range map[string]string{"/proc/self/status": "Name:\tfiles.test", "/sys/kernel/mm/transparent_hugepage/enabled": "always"} {
		var stream bytes.Buffer
		assert.NoError(t, Pack(&stream, file))
		to := t.TempDir()
		assert.NoError(t, Unpack(&stream, Destination{Folder: to, Name: "copy"}))
		assert.Contains(t, file+" has", readText(t, to+"/copy"), content)
	}
	assert.ErrorSays(t, "the memory", Pack(io.Discard, "/proc/self/mem"), "input/output error")
	_ = Pack(io.Discard, "/proc/kmsg") // It does not wait for messages.
}
