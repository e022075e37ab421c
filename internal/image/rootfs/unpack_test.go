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
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filetree"
)

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

// requestOf returns an order of layers.
func requestOf(layers [][]byte) rootfs.Request {
	o := rootfs.Request{Seed: "sha256:test", MaxContent: maxBytes, MaxSize: maxBytes}
	for _, layer := range layers {
		o.Layers = append(o.Layers, int64(len(layer)))
	}
	return o
}

// convertRequest converts layers to a file.
func convertRequest(t testing.TB, order rootfs.Request, layers [][]byte) (*os.File, rootfs.Result) {
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
	out, result := convertRequest(t, requestOf(layers), layers)
	info, err := out.Stat()
	assert.NoError(t, err)
	assert.Require(t, result.Reason == "" && result.Size == info.Size(), "got %+v, and a file of %d bytes", result, info.Size())
	return out
}

// checkConverted checks that layers make the tree that a container engine unpacks them to, by another reader and by Linux,
// however they are compressed, and the same bytes each time. It returns that tree.
func checkConverted(t *testing.T, layers ...[]byte) filetree.Tree {
	t.Helper()
	var converted *os.File
	var first []byte
	for name, pack := range map[string]func(testing.TB, []byte) []byte{
		"plain": func(_ testing.TB, b []byte) []byte { return b }, "gzip": gzipped, "zstd": zstandard,
	} {
		var packed [][]byte
		for _, layer := range layers {
			packed = append(packed, pack(t, layer))
		}
		converted = convertLayers(t, packed...)
		content, err := os.ReadFile(converted.Name())
		assert.NoError(t, err)
		assert.True(t, first == nil || bytes.Equal(first, content), "%s: it has other bytes", name)
		first = content
	}
	tree := filetree.Read(t, converted)
	if mounted, ok := filetree.ReadMounted(t, converted.Name()); ok {
		assert.Equal(t, "Linux reads it otherwise:\n", tree.Diff(mounted), "")
	}
	want, err := unpackByEngine(t, layers...)
	assert.NoError(t, err)
	assert.Equal(t, "a container engine has it otherwise:\n", want.Diff(asExported(tree, layers...)), "")
	return tree
}
