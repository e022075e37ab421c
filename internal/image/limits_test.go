// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/static"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"
	testingclock "k8s.io/utils/clock/testing"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// zipped returns a layer whose blob is an archive, compressed.
func zipped(t *testing.T, archive []byte) v1.Layer {
	t.Helper()
	return static.NewLayer(zip(t, archive), mediatypes.OCILayer)
}

func zip(t *testing.T, content []byte) []byte {
	t.Helper()
	var blob bytes.Buffer
	w := gzip.NewWriter(&blob)
	_, err := w.Write(content)
	assert.NoError(t, errors.Join(err, w.Close()))
	return blob.Bytes()
}

func zstandard(t *testing.T, archive []byte, options ...zstd.EOption) v1.Layer {
	t.Helper()
	var blob bytes.Buffer
	w, err := zstd.NewWriter(&blob, options...)
	assert.NoError(t, err)
	_, err = w.Write(archive)
	assert.NoError(t, errors.Join(err, w.Close()))
	return static.NewLayer(blob.Bytes(), mediatypes.OCILayerZStd)
}

// TestTooLarge checks that an image is refused at its limit, in whatever form it is sent,
// and that the refusal is final for its spec.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	const limit = 2 << 20
	zeros := make([]byte, 8<<20)
	web := func(f http.HandlerFunc) func(*testing.T) string {
		return func(t *testing.T) string { t.Helper(); return serve(t, f) }
	}
	oci := func(layers ...v1.Layer) func(*testing.T) string {
		return func(t *testing.T) string { t.Helper(); return push(t, nil, layers...) }
	}
	for name, c := range map[string]struct {
		source func(*testing.T) string
		says   string
	}{
		"a length": {web(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1152921504606846976")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}), "it has 1152921504606846976 bytes: --image-max-size allows 2097152"},
		"without a length": {web(func(w http.ResponseWriter, _ *http.Request) {
			for range 1 << 20 {
				if _, err := w.Write(zeros[:1<<20]); err != nil {
					return
				}
			}
		}), "it has more than 2097152 bytes, the limit of --image-max-size"},
		"a disk, decompressed":       {oci(zipped(t, framework.TarOf(t, "disk/a", zeros))), "the layers of the image have more than 2097152 bytes"},
		"a file, decompressed":       {oci(zipped(t, framework.TarOf(t, "etc/a", zeros))), "the layers of the image have more than 2097152 bytes"},
		"a disk, by zstd":            {oci(zstandard(t, framework.TarOf(t, "disk/a", zeros))), "the layers of the image have more than 2097152 bytes"},
		"all layers":                 {oci(zipped(t, framework.TarOf(t, "disk/a", disk())), zipped(t, framework.TarOf(t, "etc/a", disk()))), "the layers of the image have more than 2097152 bytes"},
		"compressed, of nothing":     {oci(static.NewLayer(bytes.Repeat(zip(t, nil), 100_000), mediatypes.OCILayer)), "the layers of the image have more than 2097152 bytes"},
		"a layer that needs memory":  {oci(zstandard(t, framework.TarOf(t, "disk/a", disk()), zstd.WithWindowSize(128<<20))), "needs more than 67108864 bytes of memory"},
		"a layer that needs little":  {oci(zstandard(t, framework.TarOf(t, "disk/a", disk()))), ""},
		"of a size that is allowed":  {web(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(disk()) }), ""},
		"compressed, of that size":   {oci(zipped(t, framework.TarOf(t, "disk/a", disk()))), ""},
		"uncompressed, of that size": {oci(plain(framework.TarOf(t, "disk/a", disk()))), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			source := c.source(t)
			s := newStore(t)
			allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: []string{hostOf(source)}, MaxSize: limit})
			err := fetch(t, s, image.ParseRef(source, ""))
			if c.says == "" {
				assert.NoError(t, err)
				return
			}
			kind := image.ErrInvalid
			if strings.Contains(name, "memory") {
				kind = image.ErrUnavailable
			}
			assert.ErrorIs(t, "Fetch", err, kind, c.says)
			checkImages(t, s, 0)
		})
	}
}

// TestManyLayers checks the limit on layers, each of which costs a request.
func TestManyLayers(t *testing.T) {
	t.Parallel()
	var layers []v1.Layer
	for n := range 128 {
		layers = append(layers, plain(framework.TarOf(t, "etc/"+strconv.Itoa(n), nil)))
	}
	ref := image.ParseRef(push(t, nil, layers...), "")
	assert.ErrorSays(t, "Fetch", fetch(t, newStore(t, hostOf(ref.Source.Text())), ref), "the image has 128 layers: it may have at most 127")
}

// sparsePAX returns an archive of a disk of which all but a sector is a hole.
func sparsePAX(size int64) []byte {
	var records string
	for key, value := range map[string]string{"GNU.sparse.numblocks": "1", "GNU.sparse.map": "0,512", "GNU.sparse.size": strconv.FormatInt(size, 10)} {
		record := fmt.Sprintf(" %s=%s\n", key, value)
		length := len(record) + 2
		records += strconv.Itoa(length) + record
	}
	body := append([]byte(records), make([]byte, 512-len(records)%512)...)
	all := append(rawEntry("pax", 'x', len(records), nil), body...)
	all = append(all, rawEntry("disk/a", '0', 512, nil)...)
	return append(all, make([]byte, 512+1024)...)
}

// sparseGNU returns the same in the older form.
func sparseGNU(size int64) []byte {
	all := rawEntry("disk/a", 'S', 512, func(header []byte) {
		copy(header[257:], "ustar  \x00")
		copy(header[386:], fmt.Sprintf("%011o\x00%011o\x00", 0, 512))
		copy(header[483:], fmt.Sprintf("%011o\x00", size))
	})
	return append(all, make([]byte, 512+1024)...)
}

// rawEntry returns the header of an entry.
func rawEntry(name string, kind byte, size int, more func(header []byte)) []byte {
	header := make([]byte, 512)
	copy(header, name)
	copy(header[100:], "0000444\x000000000\x000000000\x00")
	copy(header[124:], fmt.Sprintf("%011o\x00%011o\x00        ", size, 0))
	header[156] = kind
	copy(header[257:], "ustar\x0000")
	if more != nil {
		more(header)
	}
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
	return header
}

// TestSparse checks that a file with holes is refused before any of them is read.
func TestSparse(t *testing.T) {
	t.Parallel()
	const hole = 3 << 30
	for name, archive := range map[string][]byte{"PAX": sparsePAX(hole), "GNU": sparseGNU(hole)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layer := zipped(t, archive)
			size, err := layer.Size()
			assert.True(t, err == nil && size <= 400, "the layer has %d bytes, %v: it is meant to be a small one", size, err)
			ref := image.ParseRef(push(t, nil, layer), "")
			s := newStore(t, hostOf(ref.Source.Text()))
			wantRetry(t, fetchReporting(t, s, ref, func(status string) {
				assert.True(t, strings.HasSuffix(status, "(0.0/0.0 MB)"), "more than the layer was read: %s", status)
			}), "the disk is a sparse file")
			checkImages(t, s, 0)
		})
	}
}

// serveVersions serves the content once good is set, and the bad one before. The header,
// unless it is empty, says which.
func serveVersions(t *testing.T, header string, bad, content []byte, good *atomic.Bool) (url string) {
	t.Helper()
	return serve(t, func(w http.ResponseWriter, _ *http.Request) {
		version, body := "version-1", bad
		if good.Load() {
			version, body = "version-2", content
		}
		if header != "" {
			w.Header().Set(header, version)
		}
		_, _ = w.Write(body)
	})
}

// TestRejectedContent checks that unusable content is not sent again at each attempt,
// until the server has something else, or some hours have passed.
func TestRejectedContent(t *testing.T) {
	t.Parallel()
	content := disk()
	for name, c := range map[string]struct {
		header   string
		says     string
		checksum string
		bad      []byte
	}{
		"a wrong checksum":             {"ETag", "its checksum is", checksum(content), append(disk(), make([]byte, 512)...)},
		"a wrong checksum, by time":    {"Last-Modified", "its checksum is", checksum(content), append(disk(), make([]byte, 512)...)},
		"a wrong checksum, no version": {"", "its checksum is", checksum(content), append(disk(), make([]byte, 512)...)},
		"no disk":                      {"ETag", "not a disk image", "", []byte("hello")},
		"too large":                    {"ETag", "--image-max-size", "", make([]byte, 4<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var good atomic.Bool
			url := serveVersions(t, c.header, c.bad, content, &good)
			s, now := newStore(t), testingclock.NewFakeClock(time.Now())
			allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, MaxSize: 2 << 20})
			s.Clock = now
			ref := image.ParseRef(url, c.checksum)
			try := func() error { return fetch(t, s, ref) }
			again, step := "has not changed", time.Hour
			if c.header == "" {
				again, step = "does not report whether the content has changed", time.Minute
			}
			first := try()
			assert.Require(t, first != nil && strings.Contains(first.Error(), c.says) && !strings.Contains(first.Error(), again), "got the error %v", first)
			for range 3 { // which does not make the text longer, nor the time
				if err := try(); err == nil || !strings.HasPrefix(err.Error(), first.Error()) || strings.Count(err.Error(), again) != 1 {
					t.Errorf("got the error %v, want the earlier one", err)
				}
				now.Step(step)
			}
			good.Store(true)
			if c.header == "" {
				err := try()
				assert.True(t, err != nil && strings.Contains(err.Error(), again) && !strings.Contains(err.Error(), "has not changed"), "got the error %v", err)
				now.Step(2 * time.Minute)
			}
			assert.NoError(t, try())
		})
	}
}

// TestRejectedManifest checks that only the manifest is requested from a registry, as
// long as that is the same as before.
func TestRejectedManifest(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	count := blobs(func(w http.ResponseWriter, _ *http.Request, blob []byte) {
		asked.Add(1)
		_, _ = w.Write(blob)
	})
	source := push(t, count, zipped(t, framework.TarOf(t, "etc/a", disk())))
	s := newStore(t, hostOf(source))
	for range 3 {
		assert.ErrorSays(t, "Fetch", fetch(t, s, image.ParseRef(source, "")), "no disk in /disk")
	}
	n := asked.Load()
	assert.True(t, n == 1, "its layer was fetched %d times", n)
	pushTo(t, hostOf(source), zipped(t, framework.TarOf(t, "disk/a", disk())))
	assert.NoError(t, fetch(t, s, image.ParseRef(source, "")))
}

// TestNoSpace checks that missing space is reported at once, and that the fetch is tried
// again.
func TestNoSpace(t *testing.T) {
	t.Parallel()
	url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "1152921504606846976")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	s := newStore(t)
	allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, MaxSize: 1 << 62})
	for range 2 {
		err := fetch(t, s, image.ParseRef(url, ""))
		wantRetry(t, err, "the image has 1152921504606846976 bytes, and there is no space for it")
		assert.True(t, !strings.Contains(err.Error(), "has not changed"), "got the error %v", err)
	}
	checkImages(t, s, 0)
}

// TestNoSpaceFound checks that an image of unknown size that has used up the disk is sent again only once
// there is more space.
func TestNoSpaceFound(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	mount := func(flags uintptr, mebibytes int) error {
		return unix.Mount("drover-test", stagingDir(s.Dir), "tmpfs", flags, fmt.Sprintf("size=%dM", mebibytes))
	}
	err := mount(0, 1)
	if errors.Is(err, unix.EPERM) {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	assert.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(stagingDir(s.Dir), unix.MNT_DETACH)) })
	small := &image.Store{Dir: stagingDir(s.Dir), Sub: "cache", Clock: s.Clock, Sources: s.Sources, Space: &diskspace.Disk{Dir: stagingDir(s.Dir)}}
	small.Stage = atomicfile.Folder{Path: small.Dir}.MakeFolder
	assert.NoError(t, os.Mkdir(filepath.Join(small.Dir, "cache"), 0o700))
	content := bytes.Repeat(disk(), 2)
	ref := image.ParseRef(serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"1"`)
		w.(http.Flusher).Flush() // without a Content-Length
		_, _ = w.Write(content)
	}), checksum(content))
	wantRetry(t, fetch(t, small, ref), "there is no space for it")
	wantRetry(t, fetch(t, small, ref), "it needs at least")
	assert.NoError(t, mount(unix.MS_REMOUNT, 8))
	assert.NoError(t, fetch(t, small, ref))
}

// TestHoles checks that zeroes take no space on the disk, however an image is sent, and that the
// content is the same.
func TestHoles(t *testing.T) {
	t.Parallel()
	const size = 64<<20 + 512 // ends within a block
	content := make([]byte, size)
	copy(content, disk()[:5000])
	copy(content[32<<20+10:], "in the middle")
	for name, source := range map[string]func(*testing.T) string{
		"a web server": func(t *testing.T) string {
			t.Helper()
			return serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
		},
		"a container disk": func(t *testing.T) string {
			t.Helper()
			return push(t, nil, zipped(t, framework.TarOf(t, "disk/a", content)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ref := image.ParseRef(source(t), checksum(content))
			s := newStore(t, hostOf(ref.Source.Text()))
			assert.NoError(t, fetch(t, s, ref))
			path, _ := s.Path(ref)
			got, err := os.ReadFile(path)
			assert.NoError(t, err)
			assert.True(t, bytes.Equal(got, content), "the image has %d bytes that are not those that were sent, %d", len(got), len(content))
			var info syscall.Stat_t
			assert.NoError(t, syscall.Stat(path, &info))
			onDisk := info.Blocks * 512
			assert.True(t, onDisk <= size/16, "the image takes %d bytes on the disk: of its %d bytes, all but two blocks are zeroes", onDisk, size)
		})
	}
}
