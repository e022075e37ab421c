// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image

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

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/image/compression"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// FuzzRef checks that no reference leads out of the store's folder, that a refusal names
// the field, and that the text that is shown of a source lacks its user, password and
// query.
func FuzzRef(f *testing.F) {
	digest := digestPrefix + strings.Repeat("0", 64)
	for _, c := range [][2]string{
		{"https://user:secret@host/path?token=secret", digest},
		{"oci://host/name@" + digest, ""},
		{"/images/a.qcow2", ""},
		{"http://", digestPrefix + "../../x"},
		{"https://a@b@c/d#e?f", ""},
		{"oci://user:p/w@host/name", ""},
		{"file:///a?b", ""},
	} {
		f.Add(c[0], c[1])
	}
	f.Fuzz(func(t *testing.T, source, checksum string) {
		ref := ParseRef(source, checksum)
		if err := ref.Validate("image"); err != nil {
			assert.True(t, strings.HasPrefix(err.Error(), "image.checksum") && (errors.Is(err, ErrInvalid) || errors.Is(err, ErrUnsupported)),
				"%q, %q: the error names no field: %v", source, checksum, err)
			return
		}
		s := &Store{Dir: "/store", Sub: "cache", Clock: clock.RealClock{}}
		for _, at := range []string{s.refPath(source), first(s.Path(ref))} {
			assert.True(t, at == "" || filepath.Dir(at) == "/store/cache", "%q, %q: the path is %s", source, checksum, at)
		}
		sources, err := NewSources(Policy{PlainHTTP: []string{"localhost:5000"}})
		assert.NoError(t, err)
		assert.True(t, ref.Checksum == "" || !sources.IsUnchecked(ref), "%q is unchecked in spite of its checksum", source)
	})
}

func first(path string, _ bool) string { return path }

// FuzzRefFile checks that the file of a source, whatever it holds, stands for a digest of an
// image in the store, or for none.
func FuzzRefFile(f *testing.F) {
	name := imagePrefix + strings.Repeat("a", 64)
	for _, content := range [][]byte{formatRefFile(name, "https://host/x"), nil, []byte(".."), []byte("../../" + name), []byte(name), []byte("sha256-a\n"), []byte("\n")} {
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		s := &Store{Dir: t.TempDir(), Sub: "cache", Clock: clock.RealClock{}}
		ref := ParseRef("https://host/x", "")
		assert.NoError(t, errors.Join(os.Mkdir(s.filePath(""), 0o700), os.WriteFile(s.refPath(ref.Source.Text()), content, 0o600)))
		digest := s.Digest(ref)
		assert.True(t, digest == "" || checksumPattern.MatchString(digest), "%q stands for %q", content, digest)
		at, exists := s.Path(ref)
		assert.True(t, !exists, "%q stands for an image that nobody has fetched, %q", content, at)
		needs, err := s.NeedsFetch(ref, "")
		assert.True(t, err == nil && needs, "with %q it needs no fetch: %v", content, err)
	})
}

// layerLimit is how many bytes the layers may have in FuzzLayers.
const layerLimit = 64 << 10

// FuzzLayers checks that no layers make more of a disk than is allowed, or a disk other than
// the only file in its folder.
func FuzzLayers(f *testing.F) {
	whole := framework.TarOf(f, "disk/a", []byte("content"))
	f.Add(whole, []byte(nil))
	f.Add(gzipOf(f, whole), whole)
	f.Add(gzipOf(f, make([]byte, 1<<20)), whole)
	f.Add(framework.TarOf(f, "disk/.wh.a", []byte("")), whole)
	f.Add(framework.TarOf(f, "/./disk//../disk/a", []byte("x")), framework.TarOf(f, "etc/disk/a", []byte("y")))
	f.Add([]byte("\x28\xb5\x2f\xfd\x00"), []byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		image, err := mutate.AppendLayers(empty.Image, rawLayer(lower), rawLayer(upper))
		if err != nil {
			t.Skip(err)
		}
		var out bytes.Buffer
		err = copyDisk(image, &out, layerLimit, func(int) {})
		assert.True(t, out.Len() <= layerLimit, "a disk of %d bytes came of layers of %d and %d bytes", out.Len(), len(lower), len(upper))
		if err != nil {
			return
		}
		want := append(disksIn(t, lower), disksIn(t, upper)...)
		assert.True(t, len(want) == 1 && bytes.Equal(want[0], out.Bytes()), "the disk is %q, and the layers have %q", out.Bytes(), want)
	})
}

func rawLayer(blob []byte) v1.Layer { return static.NewLayer(blob, mediatypes.OCILayer) }

// disksIn returns the files in the disk's folder of a layer that copyDisk has accepted.
func disksIn(t *testing.T, blob []byte) (found [][]byte) {
	t.Helper()
	content, err := compression.NewReader(bytes.NewReader(blob))
	assert.NoError(t, err)
	defer content.Close()
	files := tar.NewReader(content)
	for {
		entry, err := files.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		assert.NoError(t, err)
		dir, name := path.Split(path.Clean("/" + entry.Name))
		if dir != "/disk/" || strings.HasPrefix(name, ".") || entry.Typeflag != tar.TypeReg {
			continue
		}
		file, err := io.ReadAll(files)
		assert.NoError(t, err)
		found = append(found, file)
	}
}

func gzipOf(f *testing.F, content []byte) []byte {
	f.Helper()
	var blob bytes.Buffer
	w := gzip.NewWriter(&blob)
	_, err := w.Write(content)
	assert.NoError(f, errors.Join(err, w.Close()))
	return blob.Bytes()
}
