// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package erofs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	reader "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filetree"
)

const noLimit = 1 << 40

// written is a file system that is being written, with the content that it must have.
type written struct {
	t    *testing.T
	w    *erofs.Writer
	file *os.File
	root *erofs.Inode
	want filetree.Tree
	same map[string]int64
	next map[*erofs.Inode]int64
}

func newFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "root"))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// open returns a file as a file system is written to it.
func open(t testing.TB, f *os.File) erofs.File {
	t.Helper()
	return &diskspace.File{File: f, Disk: &diskspace.Disk{Dir: t.TempDir()}}
}

func folder() *erofs.Inode {
	return &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Children: map[string]*erofs.Inode{}}
}

func begin(t *testing.T) *written {
	t.Helper()
	f := newFile(t)
	w := &written{t: t, w: erofs.New(open(t, f), noLimit), file: f, root: folder(), want: filetree.Tree{}, same: map[string]int64{}, next: map[*erofs.Inode]int64{}}
	w.expect(".", w.root, nil)
	return w
}

// expect records what is to be read of an inode.
func (w *written) expect(path string, i *erofs.Inode, content []byte) {
	f := filetree.File{
		Mode: i.Mode, UID: i.UID, GID: i.GID, Seconds: i.Seconds, Nanoseconds: i.Nanoseconds, Target: i.Target,
		Xattrs: filetree.FormatXattrs(i.Xattrs), Links: 1,
	}
	switch i.Type() {
	case unix.S_IFREG:
		hash, err := filetree.HashOf(bytes.NewReader(content))
		assert.NoError(w.t, err)
		f.Hash, f.Size = hash, int64(len(content))
	case unix.S_IFDIR:
		f.Links = 0
	case unix.S_IFLNK:
		f.Size = int64(len(i.Target))
	case unix.S_IFCHR, unix.S_IFBLK:
		f.Device = unix.Mkdev(i.Major, i.Minor)
	}
	if _, known := w.next[i]; !known {
		w.next[i] = int64(len(w.next))
	}
	w.want[path], w.same[path] = f, w.next[i]
}

// add adds a file to the root folder.
func (w *written) add(name string, i *erofs.Inode, content []byte) *erofs.Inode {
	w.t.Helper()
	if content != nil {
		data, err := w.w.Append(bytes.NewReader(content))
		assert.NoError(w.t, err)
		i.Data = data
	}
	w.root.Children[name] = i
	w.expect(name, i, content)
	return i
}

// finish finishes the file system and checks it by all that can read it.
func (w *written) finish() {
	w.t.Helper()
	size, err := w.w.Finish(w.root, "seed")
	assert.NoError(w.t, err)
	info, err := w.file.Stat()
	assert.NoError(w.t, err)
	if size != info.Size() || size%erofs.BlockSize != 0 {
		w.t.Errorf("it has %d bytes, and the file %d", size, info.Size())
	}
	w.want.AddTwins(w.same)
	links := map[string]uint64{}
	for _, f := range w.want {
		links[f.Twin] += min(f.Links, 1)
	}
	for path, f := range w.want {
		f.Links = links[f.Twin]
		w.want[path] = f
	}
	check(w.t, w.file, w.want)
}

// check reads a file system with every reader that is available.
func check(t *testing.T, file *os.File, want filetree.Tree) {
	t.Helper()
	assert.Equal(t, "another reader has it otherwise:\n", want.Diff(filetree.Read(t, file)), "")
	if mounted, ok := filetree.ReadMounted(t, file.Name()); ok {
		assert.Equal(t, "Linux has it otherwise:\n", want.Diff(mounted), "")
	} else {
		t.Log("Linux cannot mount it here")
	}
	if fsck, err := exec.LookPath("fsck.erofs"); err == nil {
		if out, err := exec.CommandContext(t.Context(), fsck, file.Name()).CombinedOutput(); err != nil {
			t.Errorf("fsck.erofs: %v, %s", err, out)
		}
	}
}

// TestEveryType checks files of all types and sizes around those of blocks, with all that inodes have.
func TestEveryType(t *testing.T) {
	t.Parallel()
	w := begin(t)
	w.root.UID, w.root.Seconds, w.root.Xattrs = 7, 99, map[string]string{"user.root": "yes"}
	w.expect(".", w.root, nil)
	for _, size := range []int{0, 1, 4031, 4032, 4033, 4095, 4096, 4097, 3 << 20} {
		i := &erofs.Inode{Mode: unix.S_IFREG | 0o644, Seconds: int64(size), Nanoseconds: 999999999}
		w.add(fmt.Sprint("file-", size), i, bytes.Repeat([]byte("drover"), size/6+1)[:size])
	}
	for _, size := range []int{1, 59, 4031, 4032, 4033, 4094, 4095} {
		w.add(fmt.Sprint("link-", size), &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Target: strings.Repeat("t", size)}, nil)
	}
	w.add("char", &erofs.Inode{Mode: unix.S_IFCHR | 0o666, Major: 1, Minor: 3}, nil)
	w.add("block", &erofs.Inode{Mode: unix.S_IFBLK | 0o660, Major: 4095, Minor: 1<<20 - 1}, nil)
	w.add("pipe", &erofs.Inode{Mode: unix.S_IFIFO | 0o600}, nil)
	w.add("socket", &erofs.Inode{Mode: unix.S_IFSOCK | 0o600}, nil)
	w.add("setuid", &erofs.Inode{Mode: unix.S_IFREG | 0o6755, UID: 4294967294, GID: 3000000000, Seconds: -5}, []byte("x"))
	w.add("sticky", &erofs.Inode{Mode: unix.S_IFDIR | 0o1777}, nil)
	w.add("long-"+strings.Repeat("n", 250), &erofs.Inode{Mode: unix.S_IFREG}, nil)
	w.add("!before the dots", &erofs.Inode{Mode: unix.S_IFREG}, nil)
	twin := w.add("twin-1", &erofs.Inode{Mode: unix.S_IFREG | 0o644}, []byte("twins"))
	for _, name := range []string{"twin-2", "twin-3"} {
		w.root.Children[name] = twin
		w.expect(name, twin, []byte("twins"))
	}
	w.finish()
}

// TestBytesInNames checks names that are not UTF-8, which only Linux reads.
func TestBytesInNames(t *testing.T) {
	t.Parallel()
	f, root := newFile(t), folder()
	root.Children["\xff\xfe"], root.Children["\x01\n"] = &erofs.Inode{Mode: unix.S_IFREG}, &erofs.Inode{Mode: unix.S_IFREG}
	_, err := erofs.New(open(t, f), noLimit).Finish(root, "")
	assert.NoError(t, err)
	mounted, ok := filetree.ReadMounted(t, f.Name())
	if !ok {
		t.Skip("Linux cannot mount it here")
	}
	assert.True(t, mounted["\xff\xfe"].Links == 1 && mounted["\x01\n"].Links == 1 && len(mounted) == 3, "Linux has %v", mounted)
}

// TestXattrs checks attributes of all kinds and sizes, also those that lie in several blocks, of files whose content
// follows them.
func TestXattrs(t *testing.T) {
	t.Parallel()
	w := begin(t)
	all := map[string]string{
		"user.empty": "", "user.a": "b", "trusted.x": "y", "security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		"user." + strings.Repeat("n", 250): "long",
	}
	w.add("all", &erofs.Inode{Mode: unix.S_IFREG | 0o755, Xattrs: all}, []byte("x"))
	for _, size := range []int{1, 3900, 3953, 3954, 3990, 4000, 4100, 9000, 65000} {
		xattrs := map[string]string{"user.v": strings.Repeat("v", size), "user.w": "after"}
		w.add(fmt.Sprint("file-", size), &erofs.Inode{Mode: unix.S_IFREG | 0o755, Xattrs: xattrs}, []byte("x"))
		w.add(fmt.Sprint("folder-", size), &erofs.Inode{Mode: unix.S_IFDIR | 0o755, Xattrs: xattrs}, nil)
		w.add(fmt.Sprint("link-", size), &erofs.Inode{Mode: unix.S_IFLNK | 0o777, Target: "target", Xattrs: map[string]string{"trusted.v": strings.Repeat("v", size)}}, nil)
	}
	w.finish()
}

// TestLargeFolder checks a folder of 100,000 files, whose names have many lengths.
func TestLargeFolder(t *testing.T) {
	t.Parallel()
	const files = 100_000
	f, root := newFile(t), folder()
	name := func(k int) string { return fmt.Sprintf("%d-%s", k, strings.Repeat("n", k%50)) }
	for k := range files {
		root.Children[name(k)] = &erofs.Inode{Mode: unix.S_IFREG | 0o644, UID: uint32(k)}
	}
	_, err := erofs.New(open(t, f), noLimit).Finish(root, "")
	assert.NoError(t, err)
	other, err := reader.Open(f)
	assert.NoError(t, err)
	entries, err := fs.ReadDir(other, ".")
	assert.NoError(t, err)
	assert.True(t, len(entries) == files, "another reader has %d files", len(entries))
	mounted, isMounted := filetree.ReadMounted(t, f.Name())
	for k := range files {
		info, err := fs.Stat(other, name(k))
		assert.NoError(t, err)
		uid := info.Sys().(*reader.Stat).UID
		assert.Require(t, uid == uint32(k) && (!isMounted || mounted[name(k)].UID == uid), "%s is of user %d, and in Linux %+v", name(k), uid, mounted[name(k)])
	}
}

// TestFolderSizes checks folders that end at every place around the end of a block, and of the space after an inode.
func TestFolderSizes(t *testing.T) {
	t.Parallel()
	w := begin(t)
	empty := &erofs.Inode{Mode: unix.S_IFREG | 0o644}
	for size := range 200 {
		in := folder()
		w.add(fmt.Sprint("in-", size), in, nil)
		for k := range 15 {
			name := fmt.Sprintf("%02d%s", k, strings.Repeat("n", 248))
			in.Children[name] = empty
			w.expect(fmt.Sprintf("in-%d/%s", size, name), empty, nil)
		}
		name := "z" + strings.Repeat("z", size)
		in.Children[name] = empty
		w.expect(fmt.Sprintf("in-%d/%s", size, name), empty, nil)
	}
	w.finish()
}

// zeros is a content without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestHugeFile checks a file of more than 4 GiB, and that zeros take no space.
func TestHugeFile(t *testing.T) {
	t.Parallel()
	const size = 4<<30 + 5
	f := newFile(t)
	w, root := erofs.New(open(t, f), noLimit), folder()
	data, err := w.Append(io.MultiReader(io.LimitReader(zeros{}, size-5), strings.NewReader("12345")))
	assert.NoError(t, err)
	root.Children["huge"] = &erofs.Inode{Mode: unix.S_IFREG, Data: data}
	_, err = w.Finish(root, "")
	assert.NoError(t, err)
	var stat unix.Stat_t
	assert.NoError(t, unix.Fstat(int(f.Fd()), &stat))
	assert.True(t, stat.Blocks*512 <= 1<<20, "its zeros take %d bytes", stat.Blocks*512)
	end := make([]byte, 5)
	_, err = f.ReadAt(end, data.Offset()+size-5)
	assert.NoError(t, err)
	assert.True(t, string(end) == "12345" && data.Size == size, "it has %d bytes and ends with %q", data.Size, end)
	files, err := reader.Open(f)
	assert.NoError(t, err)
	info, err := fs.Stat(files, "huge")
	assert.NoError(t, err)
	assert.True(t, info.Size() == size, "another reader has %d bytes", info.Size())
}

// makeWithDead makes a file system in which two of four files are not in the tree.
func makeWithDead(t *testing.T) *os.File {
	t.Helper()
	f := newFile(t)
	w, root := erofs.New(open(t, f), noLimit), folder()
	for k, name := range []string{"a", "b", "c", "d"} {
		data, err := w.Append(strings.NewReader(strings.Repeat(fmt.Sprint("secret", k), 3000)))
		assert.NoError(t, err)
		root.Children[name] = &erofs.Inode{Mode: unix.S_IFREG | 0o644, Data: data, Xattrs: map[string]string{"user.a": "1", "user.b": "2"}}
	}
	delete(root.Children, "b")
	delete(root.Children, "d")
	_, err := w.Finish(root, "seed")
	assert.NoError(t, err)
	return f
}

// TestDeadData checks that nothing is left of data that no file has, and that the same input gives the same bytes.
func TestDeadData(t *testing.T) {
	t.Parallel()
	var contents [][]byte
	for range 2 {
		f := makeWithDead(t)
		content, err := os.ReadFile(f.Name())
		assert.NoError(t, err)
		contents = append(contents, content)
		tree := filetree.Read(t, f)
		assert.True(t, len(tree) == 3, "it has %v", tree)
	}
	assert.True(t, bytes.Equal(contents[0], contents[1]), "the same input gave other bytes")
	for text, want := range map[string]bool{"secret0": true, "secret1": false, "secret2": true, "secret3": false} {
		assert.True(t, bytes.Contains(contents[0], []byte(text)) == want, "it has %q: want %v", text, want)
	}
}

// TestLimit checks that data and metadata together stay within the limit.
func TestLimit(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	w := erofs.New(open(t, f), 1<<20)
	assert.ErrorIs(t, "Append", assert.ErrorOf(w.Append(zeros{})), erofs.ErrTooLarge)
	info, err := f.Stat()
	assert.NoError(t, err)
	assert.True(t, info.Size() <= 1<<20, "%d bytes were written", info.Size())
	root := folder()
	for k := range 20_000 {
		root.Children[fmt.Sprint(k)] = &erofs.Inode{Mode: unix.S_IFREG}
	}
	assert.ErrorIs(t, "Finish", assert.ErrorOf(erofs.New(open(t, newFile(t)), 1<<20).Finish(root, "")), erofs.ErrTooLarge)
}

// TestRefused checks that what cannot be encoded is refused.
func TestRefused(t *testing.T) {
	t.Parallel()
	in := func(name string, i *erofs.Inode) *erofs.Inode {
		root := folder()
		root.Children[name] = i
		return root
	}
	file := &erofs.Inode{Mode: unix.S_IFREG}
	shared := folder()
	twice := in("a", shared)
	twice.Children["b"] = shared
	for name, c := range map[string]struct {
		root *erofs.Inode
		says string
	}{
		"no folder":         {file, "it must be a folder"},
		"no type":           {in("a", &erofs.Inode{}), "not a mode of a file"},
		"a slash":           {in("a/b", file), "a file cannot have"},
		"dots":              {in("..", file), ""},
		"a long name":       {in(strings.Repeat("n", 256), file), "a file cannot have"},
		"an empty link":     {in("a", &erofs.Inode{Mode: unix.S_IFLNK}), "the target"},
		"a long link":       {in("a", &erofs.Inode{Mode: unix.S_IFLNK, Target: strings.Repeat("t", 4096)}), "the target"},
		"a device":          {in("a", &erofs.Inode{Mode: unix.S_IFCHR, Major: 4096}), "the numbers"},
		"a folder twice":    {twice, "more than one name"},
		"unknown attribute": {in("a", &erofs.Inode{Mode: unix.S_IFREG, Xattrs: map[string]string{"com.apple.x": "y"}}), "com.apple.x"},
		"large attribute":   {in("a", &erofs.Inode{Mode: unix.S_IFREG, Xattrs: map[string]string{"user.x": strings.Repeat("v", 65536)}}), "user.x"},
		"many attributes":   {in("a", &erofs.Inode{Mode: unix.S_IFREG, Xattrs: map[string]string{"user.x": strings.Repeat("v", 40000), "user.y": strings.Repeat("v", 40000)}}), "at most"},
	} {
		_, err := erofs.New(open(t, newFile(t)), noLimit).Finish(c.root, "")
		if c.says == "" {
			continue // a map has no such children
		}
		assert.ErrorSays(t, name, err, c.says)
	}
}

// TestWriteFails checks that an error of the file is returned.
func TestWriteFails(t *testing.T) {
	t.Parallel()
	f := newFile(t)
	w := erofs.New(open(t, f), noLimit)
	assert.NoError(t, f.Close())
	_, err := w.Append(bytes.NewReader(bytes.Repeat([]byte("x"), 2<<20)))
	assert.True(t, errors.Is(err, os.ErrClosed), "got %v", err)
}
