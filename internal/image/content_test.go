// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/klauspost/compress/zstd"

	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// compressions returns a disk in every compressed form.
func compressions(t *testing.T) map[string][]byte {
	t.Helper()
	encoder, err := zstd.NewWriter(nil)
	assert.NoError(t, err)
	xz, err := os.ReadFile(filepath.Join("compression", "testdata", "level-9.xz"))
	assert.NoError(t, err)
	return map[string][]byte{"gzip": zip(t, disk()), "zstd": encoder.EncodeAll(disk(), nil), "xz": xz}
}

// serveTLS serves content by TLS, whatever is asked for.
func serveTLS(t *testing.T, content []byte) (url string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }))
	t.Cleanup(server.Close)
	return server.URL + "/disk" // its name does not count
}

// TestCompressed checks that a compressed image is stored decompressed, by the digest of the compressed bytes.
func TestCompressed(t *testing.T) {
	t.Parallel()
	for format, sent := range compressions(t) {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			ref := image.ParseRef(serveTLS(t, sent), checksum(sent))
			s := newStore(t)
			var last string
			assert.NoError(t, fetchReporting(t, s, ref, func(status string) { last = status }))
			checkStored(t, s, ref, disk())
			want := fmt.Sprintf("fetching %s: 100%%", ref.Source)
			assert.True(t, strings.HasPrefix(last, want), "the last progress is %q, want %q", last, want)
			other := image.ParseRef(serveTLS(t, sent), "") // which fetches it again, and finds the same file
			assert.NoError(t, fetch(t, s, other))
			checkImages(t, s, 1)
			assert.Equal(t, "its digest", s.Digest(other), ref.Checksum)
		})
	}
}

// checkStored checks what a reference stands for in a store.
func checkStored(t *testing.T, s *image.Store, ref image.Ref, want []byte) {
	t.Helper()
	path, exists := s.Path(ref)
	if got, err := os.ReadFile(path); !exists || err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is stored: %v, %v, with %d bytes that are not those of the disk", ref.Source, exists, err, len(got))
	}
}

// TestBadCompressed checks that content which is not what it should be is refused, and leaves nothing.
func TestBadCompressed(t *testing.T) {
	t.Parallel()
	const retry, final = "", "final"
	for format, sent := range compressions(t) {
		for name, c := range map[string]struct {
			sent           []byte
			checksum, says string
			kind           string
		}{
			"another checksum":         {sent, checksum(disk()), "its checksum is " + checksum(sent), retry},
			"cut off":                  {sent[:len(sent)-1], "", "the content is compressed by " + format + ", and damaged or cut off", retry},
			"with text behind":         {slices.Concat(sent, []byte("text")), "", "damaged or cut off", retry},
			"three times":              {slices.Concat(sent, sent, sent), "", "decompressed, it has more than 2097152 bytes, the limit of --image-max-size", final},
			"compressed by gzip again": {zip(t, sent), "", "it is compressed by " + format + ": only raw and qcow2 images are taken", retry},
		} {
			t.Run(format+", "+name, func(t *testing.T) {
				t.Parallel()
				s := newStore(t)
				allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, MaxSize: 2 << 20})
				err := fetch(t, s, image.ParseRef(serveTLS(t, c.sent), c.checksum))
				if c.kind == final {
					assert.ErrorIs(t, "Fetch", err, image.ErrInvalid, c.says)
				} else {
					wantRetry(t, err, c.says)
				}
				checkImages(t, s, 0)
			})
		}
	}
}

// TestCutOffCompressed checks that a connection that ends early is not taken for damaged content, which
// would not be fetched again for hours.
func TestCutOffCompressed(t *testing.T) {
	t.Parallel()
	for format, sent := range compressions(t) {
		cut := true
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Content-Length", fmt.Sprint(len(sent)))
			if cut {
				_, _ = w.Write(sent[:len(sent)/2])
				return
			}
			_, _ = w.Write(sent)
		})
		s := newStore(t)
		ref := image.ParseRef(url, checksum(sent))
		assert.ErrorSays(t, format, fetch(t, s, ref), "the content was cut off")
		cut = false
		assert.NoError(t, fetch(t, s, ref))
	}
}

// TestCompressedHoles checks that zeroes that were compressed take no space on the disk.
func TestCompressedHoles(t *testing.T) {
	t.Parallel()
	content := slices.Concat(disk()[:1<<20], make([]byte, 63<<20))
	sent := zip(t, content)
	ref := image.ParseRef(serveTLS(t, sent), checksum(sent))
	s := newStore(t)
	assert.NoError(t, fetch(t, s, ref))
	checkStored(t, s, ref, content)
	path, _ := s.Path(ref)
	var info syscall.Stat_t
	assert.NoError(t, syscall.Stat(path, &info))
	onDisk := info.Blocks * 512
	assert.True(t, onDisk <= 4<<20, "the image takes %d bytes on the disk: all but 1 MiB are zeroes", onDisk)
}

// TestCompressedElsewhere checks that the disk in a container disk is not decompressed: under its digest
// the store has one content, whichever way that comes.
func TestCompressedElsewhere(t *testing.T) {
	t.Parallel()
	for format, sent := range compressions(t) {
		ref := image.ParseRef(push(t, nil, plain(framework.TarOf(t, "disk/a", sent))), "")
		wantRetry(t, fetch(t, newStore(t, hostOf(ref.Source.Text())), ref), "it is compressed by "+format+": only raw and qcow2 images are taken")
	}
}
