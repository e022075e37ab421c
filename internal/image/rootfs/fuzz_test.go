// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/filetree"
)

// fuzzLimit is how many bytes may be read and written for an image of FuzzLayers.
const fuzzLimit = 4 << 20

// FuzzLayers checks that any two layers are refused for their content, or make a file system that another reader reads.
func FuzzLayers(f *testing.F) {
	whole := newArchive(f).folder("a").file("a/b", "content").symlink("l", "a").link("a/c", "a/b").bytes()
	f.Add(whole, newArchive(f).file("l/.wh.b", "").file("a/.wh..wh..opq", "").file("l/d", "x").bytes())
	f.Add(whole, newArchive(f).file(".wh.a", "").file("../l/../x", "").symlink("a", "../..").file("a/a/y", "").bytes())
	f.Add(gzipped(f, whole), zstandard(f, whole))
	f.Add(newArchive(f).add(tar.Header{Name: "x", Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}, "").bytes(), sparse())
	f.Add([]byte("\x28\xb5\x2f\xfd\x00"), []byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		layers := [][]byte{lower, upper}
		order := requestOf(layers)
		order.MaxContent, order.MaxSize = fuzzLimit, fuzzLimit
		out, result := convertRequest(t, order, layers)
		switch result.Reason {
		case "":
		case rootfs.ReasonContent, rootfs.ReasonTooLarge, rootfs.ReasonOutput, rootfs.ReasonMemory:
			assert.True(t, result.Message != "" && len(result.Message) <= 1000, "the message is %q", result.Message)
			return
		default:
			t.Fatalf("got %+v", result)
		}
		if isReadable(lower) && isReadable(upper) {
			filetree.Read(t, out)
		}
	})
}

// isReadable reports whether a layer is plain and its names are ones that the other reader takes.
func isReadable(layer []byte) bool {
	r := tar.NewReader(bytes.NewReader(layer))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return true
		}
		if err != nil || !utf8.ValidString(h.Name+h.Linkname) || strings.Contains(h.Name, "\\") {
			return false
		}
	}
}

// BenchmarkConvert converts 2,000 files of 100 KB.
func BenchmarkConvert(b *testing.B) {
	content := string(randomBytes(100_000))
	a := newArchive(b)
	for k := range 2000 {
		a.file(fmt.Sprintf("usr/lib/folder-%d/file-%d", k%100, k), content)
	}
	benchmark(b, a.bytes())
}

// BenchmarkConvertSmall converts 50,000 files of 2 KB.
func BenchmarkConvertSmall(b *testing.B) {
	content := string(randomBytes(2000))
	a := newArchive(b)
	for k := range 50_000 {
		a.file(fmt.Sprintf("usr/lib/folder-%d/file-%d", k%1000, k), content)
	}
	benchmark(b, a.bytes())
}

func benchmark(b *testing.B, layer []byte) {
	b.Helper()
	for name, blob := range map[string][]byte{"plain": layer, "gzip": gzipped(b, layer), "zstd": zstandard(b, layer)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(layer)))
			before := cpuTime(b)
			for b.Loop() {
				convertLayers(b, blob)
			}
			b.ReportMetric(float64(b.N*len(layer))/1e6/(cpuTime(b)-before).Seconds(), "MB/CPU-s")
		})
	}
}

// cpuTime returns the time of the CPU that this process has used, which a busy host does not change.
func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used unix.Rusage
	assert.NoError(b, unix.Getrusage(unix.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
