// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
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

// FuzzLayers checks that any two layers are refused for their content, or make the tree that unpacking them makes.
func FuzzLayers(f *testing.F) {
	whole := newArchive(f).folder("a").file("a/b", "content").symlink("l", "a").link("a/c", "a/b").bytes()
	f.Add(whole, newArchive(f).file("l/.wh.b", "").file("a/.wh..wh..opq", "").file("l/d", "x").bytes())
	f.Add(whole, newArchive(f).file(".wh.a", "").file("../l/../x", "").symlink("a", "../..").file("a/a/y", "").bytes())
	f.Add(gzipped(f, whole), zstandard(f, whole))
	f.Add(newArchive(f).add(tar.Header{Name: "x", Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}}, "").bytes(), sparse())
	f.Add([]byte("\x28\xb5\x2f\xfd\x00"), []byte("\x1f\x8b"))
	f.Fuzz(func(t *testing.T, lower, upper []byte) {
		layers := [][]byte{lower, upper}
		order := orderOf(layers)
		order.MaxContent, order.MaxSize = fuzzLimit, fuzzLimit
		out, result := convertOrder(t, order, layers)
		switch result.Reason {
		case "":
		case rootfs.ReasonContent, rootfs.ReasonTooLarge, rootfs.ReasonOutput, rootfs.ReasonMemory:
			if result.Message == "" || len(result.Message) > 1000 {
				t.Errorf("the message is %q", result.Message)
			}
			return
		default:
			t.Fatalf("got %+v", result)
		}
		if isReadable(lower) && isReadable(upper) {
			if diff := unpack(t, lower, upper).Diff(filetree.Read(t, out)); diff != "" {
				t.Errorf("unpacked is otherwise:\n%s", diff)
			}
		}
	})
}

// fuzzPaths and fuzzTargets are the names of FuzzEntries, among them such as lead through each other.
var fuzzPaths = []string{"a", "b", "a/b", "a/b/c", "l", "l/x", "l/b/y", "m", "m/n", "../a/../b", "", "b/a", "a/l", "a/l/b", "b/l"}

var fuzzTargets = []string{"a", "/a", "b", "../b", "l", "m", "..", "/", "a/b", "/a/b/c", "missing/x", "l/../m", "a/l"}

// FuzzEntries checks the same for layers that are archives: each three bytes make an entry.
func FuzzEntries(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x02\x04\x01\x00\x05\x00\x06\x00\x00\x04\x05\x00\x00\x05\x00"))
	f.Add([]byte("\x02\x00\x06\x00\x02\x00\x06\x00\x00\x03\x01\x02\x05\x00\x00\x00\x02\x00"))
	f.Fuzz(func(t *testing.T, script []byte) {
		layers := layersOfScript(t, script)
		out, result := convertOrder(t, orderOf(layers), layers)
		if result.Reason == rootfs.ReasonContent {
			return
		}
		if result.Reason != "" {
			t.Fatalf("got %+v", result)
		}
		if diff := unpack(t, layers...).Diff(filetree.Read(t, out)); diff != "" {
			t.Errorf("unpacked is otherwise:\n%s", diff)
		}
	})
}

func layersOfScript(t *testing.T, script []byte) (layers [][]byte) {
	t.Helper()
	a := newArchive(t)
	for ; len(script) >= 3; script = script[3:] {
		name, target := fuzzPaths[int(script[1])%len(fuzzPaths)], fuzzTargets[int(script[2])%len(fuzzTargets)]
		folder, base := path.Split(name)
		switch script[0] % 7 {
		case 0:
			if name != "" {
				a.file(name, target)
			}
		case 1:
			a.folder(name + "/")
		case 2:
			a.symlink(name, target)
		case 3:
			a.link(name, target)
		case 4:
			a.file(folder+".wh."+base, "")
		case 5:
			a.file(name+"/.wh..wh..opq", "")
		case 6:
			layers = append(layers, a.bytes())
			a = newArchive(t)
		}
	}
	return append(layers, a.bytes())
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
