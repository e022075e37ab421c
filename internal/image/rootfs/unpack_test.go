// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filetree"
)

// unpacked is the result of unpacking the layers of an image, by rules that are written here a second time: a list of
// files by their whole paths. The root is ".".
type unpacked struct {
	files map[string]*unpackedFile
	next  int64
}

type unpackedFile struct {
	filetree.File

	number int64
}

func (u *unpacked) newFile(f filetree.File) *unpackedFile {
	u.next++
	return &unpackedFile{f, u.next}
}

// unpack returns the tree of the layers.
func unpack(t testing.TB, layers ...[]byte) filetree.Tree {
	t.Helper()
	u := &unpacked{files: map[string]*unpackedFile{}}
	u.files["."] = u.newFile(filetree.File{Mode: unix.S_IFDIR | 0o755})
	for _, layer := range layers {
		for _, whiteouts := range []bool{true, false} {
			r := tar.NewReader(bytes.NewReader(layer))
			for {
				h, err := r.Next()
				if errors.Is(err, io.EOF) {
					break
				}
				assert.NoError(t, err)
				u.add(t, h, r, whiteouts)
			}
		}
	}
	tree, numbers, links := filetree.Tree{}, map[string]int64{}, map[int64]uint64{}
	for _, f := range u.files {
		links[f.number]++
	}
	for path, f := range u.files {
		if f.Mode&unix.S_IFMT != unix.S_IFDIR {
			f.Links = links[f.number]
		}
		tree[path], numbers[path] = f.File, f.number
	}
	tree.AddTwins(numbers)
	return tree
}

// add applies an entry if it is a whiteout, or only if it is not, as whiteouts says.
func (u *unpacked) add(t testing.TB, h *tar.Header, content io.Reader, whiteouts bool) {
	t.Helper()
	if h.Typeflag == tar.TypeXGlobalHeader {
		return
	}
	name := path.Clean("/" + h.Name)[1:]
	dir, base := path.Dir(name), path.Base(name)
	if isWhiteout := strings.HasPrefix(base, ".wh."); isWhiteout || strings.HasPrefix(name, ".wh.") {
		if isWhiteout && whiteouts {
			u.whiteOut(dir, base)
		}
		return
	}
	if whiteouts {
		return
	}
	if name == "" {
		u.files["."].File = fileOf(t, h, content)
		return
	}
	dir, _ = u.follow(dir, true)
	at := path.Join(dir, base)
	f := u.newFile(fileOf(t, h, content))
	if h.Typeflag == tar.TypeLink {
		target := path.Clean("/" + h.Linkname)[1:]
		from, _ := u.follow(path.Dir(target), false)
		f = u.files[path.Join(from, path.Base(target))]
	}
	if old := u.files[at]; old == nil || h.Typeflag != tar.TypeDir || old.Mode&unix.S_IFMT != unix.S_IFDIR {
		u.removeAll(at)
	}
	u.files[at] = f
}

func (u *unpacked) whiteOut(dir, base string) {
	dir, ok := u.follow(dir, false)
	switch {
	case !ok:
	case base == ".wh..wh..opq":
		for name := range u.files {
			if name != dir && (dir == "." || strings.HasPrefix(name, dir+"/")) && name != "." {
				delete(u.files, name)
			}
		}
	case !strings.HasPrefix(base, ".wh..wh."):
		u.removeAll(path.Join(dir, strings.TrimPrefix(base, ".wh.")))
	}
}

func (u *unpacked) removeAll(place string) {
	if u.files[place] == nil {
		return
	}
	for name := range u.files {
		if name == place || strings.HasPrefix(name, place+"/") {
			delete(u.files, name)
		}
	}
}

// follow returns the folder that a path leads to.
func (u *unpacked) follow(dir string, makeIt bool) (string, bool) {
	at := "."
	rest := strings.Split(dir, "/")
	for len(rest) > 0 {
		name := rest[0]
		rest = rest[1:]
		if name == "" || name == "." {
			continue
		}
		next := path.Clean("/" + path.Join(at, name))[1:]
		if next == "" {
			next = "."
		}
		f := u.files[next]
		switch {
		case f != nil && f.Mode&unix.S_IFMT == unix.S_IFLNK:
			if path.IsAbs(f.Target) {
				at = "."
			}
			rest = append(strings.Split(f.Target, "/"), rest...)
			continue
		case f != nil && f.Mode&unix.S_IFMT == unix.S_IFDIR:
		case !makeIt:
			return "", false
		default:
			u.files[next] = u.newFile(filetree.File{Mode: unix.S_IFDIR | 0o755})
		}
		at = next
	}
	return at, true
}

func fileOf(t testing.TB, h *tar.Header, content io.Reader) filetree.File {
	t.Helper()
	f := filetree.File{
		Mode: uint32(h.Mode & 0o7777), UID: uint32(h.Uid), GID: uint32(h.Gid), Seconds: h.ModTime.Unix(), Nanoseconds: uint32(h.ModTime.Nanosecond()), //nolint:gosec // of a test
	}
	xattrs := map[string]string{}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && !strings.HasPrefix(name, "com.") {
			xattrs[name] = value
		}
	}
	f.Xattrs = filetree.FormatXattrs(xattrs)
	switch h.Typeflag {
	case tar.TypeReg:
		hash, err := filetree.HashOf(content)
		assert.NoError(t, err)
		f.Mode, f.Size, f.Hash = f.Mode|unix.S_IFREG, h.Size, hash
	case tar.TypeDir:
		f.Mode |= unix.S_IFDIR
	case tar.TypeSymlink:
		f.Mode, f.Target, f.Size = unix.S_IFLNK|0o777, h.Linkname, int64(len(h.Linkname))
	case tar.TypeChar:
		f.Mode, f.Device = f.Mode|unix.S_IFCHR, unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)) //nolint:gosec // of a test
	case tar.TypeBlock:
		f.Mode, f.Device = f.Mode|unix.S_IFBLK, unix.Mkdev(uint32(h.Devmajor), uint32(h.Devminor)) //nolint:gosec // of a test
	case tar.TypeFifo:
		f.Mode |= unix.S_IFIFO
	}
	return f
}

// archive makes a layer.
type archive struct {
	t      testing.TB
	buffer bytes.Buffer
	w      *tar.Writer
}

func newArchive(t testing.TB) *archive {
	t.Helper()
	a := &archive{t: t}
	a.w = tar.NewWriter(&a.buffer)
	return a
}

// add adds an entry. Its size is the size of the content.
func (a *archive) add(h tar.Header, content string) *archive {
	a.t.Helper()
	h.Size = int64(len(content))
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
	}
	if h.Mode == 0 && h.Typeflag != tar.TypeXGlobalHeader {
		h.Mode = 0o644
	}
	assert.NoError(a.t, a.w.WriteHeader(&h))
	_, err := io.WriteString(a.w, content)
	assert.NoError(a.t, err)
	return a
}

func (a *archive) file(name, content string) *archive { return a.add(tar.Header{Name: name}, content) }

func (a *archive) folder(name string) *archive {
	return a.add(tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o750}, "")
}

func (a *archive) symlink(name, target string) *archive {
	return a.add(tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}, "")
}

func (a *archive) link(name, target string) *archive {
	return a.add(tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: target}, "")
}

func (a *archive) bytes() []byte {
	a.t.Helper()
	assert.NoError(a.t, a.w.Close())
	return a.buffer.Bytes()
}

func gzipped(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, err := w.Write(content)
	assert.NoError(t, errors.Join(err, w.Close()))
	return out.Bytes()
}

func zstandard(t testing.TB, content []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := zstd.NewWriter(&out)
	assert.NoError(t, err)
	_, err = w.Write(content)
	assert.NoError(t, errors.Join(err, w.Close()))
	return out.Bytes()
}

// maxBytes is more than any test needs.
const maxBytes = 8 << 30

// orderOf returns an order of layers.
func orderOf(layers [][]byte) rootfs.Order {
	o := rootfs.Order{Seed: "sha256:test", MaxContent: maxBytes, MaxSize: maxBytes}
	for _, layer := range layers {
		o.Layers = append(o.Layers, int64(len(layer)))
	}
	return o
}

// convertOrder converts layers to a file.
func convertOrder(t testing.TB, order rootfs.Order, layers [][]byte) (*os.File, rootfs.Result) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "root"))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = out.Close() })
	result, err := rootfs.ConvertHere(t.Context(), order, func(number int) (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(layers[number])), nil
	}, output(t, out))
	assert.NoError(t, err)
	return out, result
}

// convertLayers converts layers that can be converted.
func convertLayers(t testing.TB, layers ...[]byte) *os.File {
	t.Helper()
	out, result := convertOrder(t, orderOf(layers), layers)
	info, err := out.Stat()
	assert.NoError(t, err)
	if result.Reason != "" || result.Size != info.Size() {
		t.Fatalf("got %+v, and a file of %d bytes", result, info.Size())
	}
	return out
}

// checkConverted checks that layers make the tree that unpacking them makes, by another reader and by Linux, however
// they are compressed, and the same bytes each time.
func checkConverted(t *testing.T, layers ...[]byte) filetree.Tree {
	t.Helper()
	want := unpack(t, layers...)
	var first []byte
	for name, pack := range map[string]func(testing.TB, []byte) []byte{
		"plain": func(_ testing.TB, b []byte) []byte { return b }, "gzip": gzipped, "zstd": zstandard,
	} {
		var packed [][]byte
		for _, layer := range layers {
			packed = append(packed, pack(t, layer))
		}
		out := convertLayers(t, packed...)
		content, err := os.ReadFile(out.Name())
		assert.NoError(t, err)
		if first != nil {
			if !bytes.Equal(first, content) {
				t.Errorf("%s: it has other bytes", name)
			}
			continue
		}
		first = content
		if diff := want.Diff(filetree.Read(t, out)); diff != "" {
			t.Errorf("another reader has it otherwise:\n%s", diff)
		}
		if mounted, ok := filetree.ReadMounted(t, out.Name()); ok {
			if diff := want.Diff(mounted); diff != "" {
				t.Errorf("Linux has it otherwise:\n%s", diff)
			}
		}
	}
	return want
}
