// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package filetree reads file systems for tests of the code that writes them: with a reader
// that is not Drover's, and by mounting them in Linux.
//
// Start with Read and ReadMounted, which return the same for the same file system. Program
// show reads the root that it runs on, such as a guest's root.
package filetree

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/base64"
	"encoding/gob"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	reader "github.com/erofs/go-erofs"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
)

// Tree has the attributes of all files of a file system by their paths. The root is ".".
type Tree map[string]File

// File has the attributes of a file, and Hash the hash of its content.
type File struct {
	Mode, UID, GID uint32
	Seconds        int64
	Nanoseconds    uint32
	Size           int64 // of regular files and links
	Device         uint64
	Links          uint64 // 0 for folders
	Target, Hash   string
	Xattrs         string
	// Twin is the first of the file's paths, in alphabetical order.
	Twin string
}

// HashOf returns the hash of a content.
func HashOf(content io.Reader) (string, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, content)
	return hex.EncodeToString(sum.Sum(nil)), err
}

// FormatXattrs returns extended attributes as a File has them.
func FormatXattrs(all map[string]string) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		lines = append(lines, fmt.Sprintf("%s=%q", name, all[name]))
	}
	return strings.Join(lines, " ")
}

// AddTwins sets Twin of each file. Paths of the same file have the same number.
func (t Tree) AddTwins(numbers map[string]int64) {
	first := map[int64]string{}
	for _, path := range slices.Sorted(maps.Keys(t)) {
		f, number := t[path], numbers[path]
		if _, known := first[number]; !known {
			first[number] = path
		}
		f.Twin = first[number]
		t[path] = f
	}
}

// Diff returns up to ten differences, one a line.
func (t Tree) Diff(other Tree) string {
	var lines []string
	for _, path := range slices.Sorted(maps.Keys(t)) {
		if otherFile, ok := other[path]; !ok || otherFile != t[path] {
			lines = append(lines, fmt.Sprintf("%q: %+v, other %+v %v", path, t[path], otherFile, ok))
		}
	}
	for _, path := range slices.Sorted(maps.Keys(other)) {
		if _, ok := t[path]; !ok {
			lines = append(lines, fmt.Sprintf("%q: only in the other: %+v", path, other[path]))
		}
	}
	return strings.Join(lines[:min(len(lines), 10)], "\n")
}

// Read reads an EROFS file system with an implementation that is not Drover's.
func Read(t testing.TB, image io.ReaderAt) Tree {
	t.Helper()
	files, err := reader.Open(image)
	assert.NoError(t, err)
	tree, numbers := Tree{}, map[string]int64{}
	err = fs.WalkDir(files, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*reader.Stat)
		f := File{
			Mode: unixMode(stat.Mode), UID: stat.UID, GID: stat.GID, Seconds: int64(stat.Mtime), Nanoseconds: stat.MtimeNs, //nolint:gosec // with its sign
			Xattrs: FormatXattrs(stat.Xattrs),
		}
		numbers[path] = stat.Ino
		switch mode := info.Mode(); {
		case mode.IsDir():
		case mode.IsRegular():
			f.Size = info.Size()
			f.Hash, err = hashFile(files, path)
		case mode&fs.ModeSymlink != 0:
			f.Target, err = files.(interface {
				ReadLink(name string) (string, error)
			}).ReadLink(path)
			f.Size = info.Size()
		case mode&fs.ModeDevice != 0:
			f.Device = uint64(stat.Rdev)
		}
		if !info.IsDir() {
			f.Links = uint64(stat.Nlink) //nolint:gosec // positive
		}
		tree[path] = f
		return err
	})
	assert.NoError(t, err)
	tree.AddTwins(numbers)
	return tree
}

func hashFile(files fs.FS, path string) (string, error) {
	f, err := files.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return HashOf(f)
}

// hashPath hashes a file of the host. Unlike those of fs.FS, its name may have any bytes.
func hashPath(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }()
	return HashOf(f)
}

// unixMode returns a mode as stat(2) has it.
func unixMode(mode fs.FileMode) uint32 {
	bits := uint32(mode.Perm())
	for flag, bit := range map[fs.FileMode]uint32{
		fs.ModeDir: unix.S_IFDIR, fs.ModeSymlink: unix.S_IFLNK, fs.ModeNamedPipe: unix.S_IFIFO, fs.ModeSocket: unix.S_IFSOCK,
		fs.ModeSetuid: unix.S_ISUID, fs.ModeSetgid: unix.S_ISGID, fs.ModeSticky: unix.S_ISVTX,
	} {
		if mode&flag != 0 {
			bits |= bit
		}
	}
	switch {
	case mode&fs.ModeCharDevice != 0:
		bits |= unix.S_IFCHR
	case mode&fs.ModeDevice != 0:
		bits |= unix.S_IFBLK
	case mode.IsRegular():
		bits |= unix.S_IFREG
	}
	return bits
}

// ReadMounted mounts a file system and reads it. It reports false if that is not possible:
// mounting needs root, and a kernel with EROFS and loop devices.
func ReadMounted(t testing.TB, image string) (Tree, bool) {
	t.Helper()
	known, _ := os.ReadFile("/proc/filesystems")
	if os.Geteuid() != 0 || !strings.Contains(string(known), "\terofs\n") {
		return nil, false
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), "mount", "-t", "erofs", "-o", "loop,ro", image, dir).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "loop device") {
			return nil, false
		}
		t.Fatalf("Linux does not mount %s: %v, %s", image, err, out)
	}
	// A lazy unmount at once leaves nothing mounted if the test is killed.
	root, err := os.Open(dir)
	assert.NoError(t, errors.Join(err, unix.Unmount(dir, unix.MNT_DETACH)))
	defer func() { _ = root.Close() }()
	return ReadFolder(t, fmt.Sprintf("/proc/self/fd/%d/", root.Fd())), true
}

// ReadFolder reads all that is below a folder.
func ReadFolder(t testing.TB, dir string) Tree {
	t.Helper()
	tree, err := WalkFolder(dir)
	assert.NoError(t, err)
	return tree
}

// WalkFolder is ReadFolder outside of a test.
func WalkFolder(dir string) (Tree, error) {
	tree, numbers := Tree{}, map[string]int64{}
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		tree[name], numbers[name], err = readFile(path)
		return err
	})
	tree.AddTwins(numbers)
	return tree, err
}

// ReadArchive reads a tar archive of a whole file system, as container engines export it.
func ReadArchive(archive io.Reader) (Tree, error) {
	tree, numbers, links := Tree{}, map[string]int64{}, map[int64]uint64{}
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		name, number := filepath.Clean(h.Name), int64(len(numbers)+1)
		if h.Typeflag == tar.TypeLink {
			first := filepath.Clean(h.Linkname)
			tree[name], number = tree[first], numbers[first]
		} else if tree[name], err = readEntry(h, r); err != nil {
			return nil, err
		}
		numbers[name] = number
		links[number]++
	}
	for name, f := range tree {
		if f.Mode&unix.S_IFMT != unix.S_IFDIR {
			f.Links = links[numbers[name]]
			tree[name] = f
		}
	}
	tree.AddTwins(numbers)
	return tree, nil
}

// readEntry returns the file of an archive's entry that is not a hard link.
func readEntry(h *tar.Header, content io.Reader) (File, error) {
	f := File{
		Mode: unixMode(h.FileInfo().Mode()), UID: uint32(h.Uid), GID: uint32(h.Gid), //nolint:gosec // as Linux has them
		Seconds: h.ModTime.Unix(), Nanoseconds: uint32(h.ModTime.Nanosecond()), //nolint:gosec // less than a second
	}
	xattrs := map[string]string{}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok {
			xattrs[name] = value
		}
	}
	f.Xattrs = FormatXattrs(xattrs)
	var err error
	switch h.Typeflag {
	case tar.TypeReg:
		f.Size = h.Size
		f.Hash, err = HashOf(content)
	case tar.TypeSymlink:
		f.Target, f.Size = h.Linkname, int64(len(h.Linkname))
	case tar.TypeChar, tar.TypeBlock:
		f.Device = unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)) //nolint:gosec // as Linux has them
	}
	return f, err
}

// Write writes a tree as ASCII text, whatever bytes its names have.
func (t Tree) Write(writer io.Writer) error {
	text := base64.NewEncoder(base64.StdEncoding, writer)
	return errors.Join(gob.NewEncoder(text).Encode(t), text.Close())
}

// Parse reads the text that Write writes.
func Parse(text io.Reader) (t Tree, err error) {
	return t, gob.NewDecoder(base64.NewDecoder(base64.StdEncoding, text)).Decode(&t)
}

func readFile(path string) (f File, number int64, err error) {
	var s unix.Stat_t
	if err := unix.Lstat(path, &s); err != nil {
		return f, 0, err
	}
	f = File{Mode: s.Mode, UID: s.Uid, GID: s.Gid, Seconds: s.Mtim.Sec, Nanoseconds: uint32(s.Mtim.Nsec)} //nolint:gosec // less than a second
	switch s.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		f.Size = s.Size
		f.Hash, err = hashPath(path)
	case unix.S_IFLNK:
		f.Size = s.Size
		f.Target, err = os.Readlink(path)
	case unix.S_IFCHR, unix.S_IFBLK:
		f.Device = s.Rdev
	}
	if s.Mode&unix.S_IFMT != unix.S_IFDIR {
		f.Links = s.Nlink
	}
	if err == nil {
		f.Xattrs, err = readXattrs(path)
	}
	return f, int64(s.Ino), err //nolint:gosec // small
}

func readXattrs(path string) (string, error) {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(path, names)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	all := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if name == "" {
			continue
		}
		value := make([]byte, 64<<10)
		size, err := unix.Lgetxattr(path, name, value)
		if err != nil {
			return "", fmt.Errorf("%s: %s: %w", path, name, err)
		}
		all[name] = string(value[:size])
	}
	return FormatXattrs(all), nil
}
