// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/terminal"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/filetree"
	"cloudnative.tw/drover/test/tier"
)

// TestContainerTree checks that a guest sees the files of an image as a container of it does, which Docker has unpacked
// by itself, and that another conversion of its layers gives the same bytes.
func TestContainerTree(t *testing.T) {
	t.Parallel()
	show := filepath.Join(t.TempDir(), "show")
	assert.NoError(t, framework.BuildStatic(show, "test/framework/filetree/show"))
	program := layerOf(t, entry{tar.Header{Name: "show", Mode: 0o755}, framework.ReadFile(t, show)})
	for name, c := range map[string]struct {
		layers func(testing.TB) [][]byte
		// files is how many it has at least.
		files int
	}{
		"scratch": {func(testing.TB) [][]byte { return nil }, 1},
		"odd":     {oddLayers, 320},
		"BusyBox": {busyBoxLayers, 30},
		"Debian":  {debianLayers, 3000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name != "odd" {
				tier.Full(t, "it takes a boot for each image; the gate has the odd one")
			}
			made, err := framework.LayersImage(v1.Config{Entrypoint: []string{"/show", "nothing"}}, append(c.layers(t), program)...)
			assert.NoError(t, err)
			box := newImageContainer(t, made)
			want := parseTree(t, framework.RunInContainer(t, box.spec.Image.Source, "/show"))
			reach(t, box.d, box.spec, driver.StateRunning)
			have := parseTree(t, box.show(t))
			diff := want.Diff(have)
			assert.True(t, diff == "" && len(want) >= c.files, "a container has %d files, and the guest's differ by\n%s", len(want), diff)
			t.Logf("%d files are the same", len(want))
			checkConvertedAgain(t, box, made)
		})
	}
}

// show returns the output of the program in the image.
func (c *container) show(t *testing.T) []byte {
	t.Helper()
	var out, errs bytes.Buffer
	assert.Eventually(t, "the files are shown", func(testing.TB) error {
		out.Reset()
		code, err := c.d.Exec(t.Context(), c.spec.UID, terminal.Command{Args: []string{"/show"}, Stdout: &out, Stderr: &errs})
		if err == nil && code != 0 {
			err = fmt.Errorf("code %d: %s", code, errs.String())
		}
		return err
	})
	return out.Bytes()
}

// parseTree returns a tree without what Docker and Drover add to images: files, mount points, and with that the times of
// some folders.
func parseTree(t *testing.T, text []byte) filetree.Tree {
	t.Helper()
	tree, err := filetree.Parse(bytes.NewReader(text))
	assert.NoError(t, err)
	for _, added := range []string{".dockerenv", "dev/console", "dev/pts", "dev/shm", "etc/hostname", "etc/hosts", "etc/mtab", "etc/resolv.conf"} {
		delete(tree, added)
	}
	for path := range tree { // the folder for the modules, with those above it
		if path == "lib" || strings.HasPrefix(strings.TrimPrefix(path, "usr/"), "lib/modules") {
			delete(tree, path)
		}
	}
	for _, folder := range []string{".", "dev", "etc", "proc", "sys", "usr/lib"} {
		f, ok := tree[folder]
		if folder == "usr/lib" && !ok {
			continue
		}
		assert.True(t, ok, "there is no folder %s", folder)
		f.Seconds, f.Nanoseconds = 0, 0
		tree[folder] = f
	}
	return tree
}

// checkConvertedAgain converts the layers of an image, and checks that the store has the same root.
func checkConvertedAgain(t *testing.T, c *container, made v1.Image) {
	t.Helper()
	digest, err := made.Digest()
	assert.NoError(t, err)
	layers, err := made.Layers()
	assert.NoError(t, err)
	const limit = 1 << 30
	request := rootfs.Request{Seed: digest.String(), MaxContent: limit, MaxSize: limit}
	for _, layer := range layers {
		size, err := layer.Size()
		assert.NoError(t, err)
		request.Layers = append(request.Layers, size)
	}
	out, err := os.Create(filepath.Join(t.TempDir(), "root"))
	assert.NoError(t, err)
	defer func() { _ = out.Close() }()
	result, err := rootfs.ConvertHere(t.Context(), request, func(n int) (io.ReadCloser, error) { return layers[n].Compressed() },
		&diskspace.File{File: out, Disk: &diskspace.Disk{Dir: t.TempDir()}})
	assert.NoError(t, err)
	stored, err := filepath.Glob(c.d.Host.StateDir.Path(cacheDir, "*"))
	assert.NoError(t, err)
	stored = slices.DeleteFunc(stored, func(path string) bool { return !image.IsRootName(filepath.Base(path)) })
	assert.Require(t, result.Size != 0 && len(stored) == 1, "the conversion gives %+v, and the store has %v", result, stored)
	assert.True(t, framework.ReadFile(t, stored[0])[:result.Size] == framework.ReadFile(t, out.Name()), "another conversion gives other bytes")
}

// busyBoxLayers returns BusyBox under many names.
func busyBoxLayers(t testing.TB) [][]byte {
	t.Helper()
	layer, err := framework.BusyBoxLayer(t.Context())
	assert.NoError(t, err)
	return [][]byte{layer}
}

// debianLayers returns some of Debian's packages, a layer for each.
func debianLayers(t testing.TB) [][]byte {
	t.Helper()
	root, err := framework.RepositoryRoot()
	assert.NoError(t, err)
	dir, _ := framework.MustRunCommand(t, framework.BuildTimeout, nil, filepath.Join(root, "hack", "debian-layers.sh"))
	archives, err := filepath.Glob(filepath.Join(strings.TrimSpace(dir), "*.tar"))
	assert.NoError(t, err)
	var layers [][]byte
	for _, path := range archives {
		layers = append(layers, []byte(framework.ReadFile(t, path)))
	}
	return layers
}

// entry is an entry of a layer.
type entry struct {
	tar.Header

	content string
}

func layerOf(t testing.TB, entries ...entry) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, e := range entries {
		e.Size, e.Format = int64(len(e.content)), tar.FormatPAX
		if e.ModTime.IsZero() {
			e.ModTime = time.Unix(1e9, 123456789)
		}
		assert.NoError(t, errors.Join(w.WriteHeader(&e.Header), assert.ErrorOf(io.WriteString(w, e.content))))
	}
	assert.NoError(t, w.Close())
	return archive.Bytes()
}

// oddLayers returns layers with entries that are rare in images. It leaves out those that Docker's engines keep
// otherwise than tar: folders without an entry, links to files of a layer below, how many names are left of a file, times before 1970, and
// empty attributes. Tests of package rootfs have these.
func oddLayers(t testing.TB) [][]byte {
	file := func(name, content string) entry { return entry{tar.Header{Name: name, Mode: 0o644}, content} }
	folder := func(name string, mode int64) entry {
		return entry{Header: tar.Header{Name: name + "/", Typeflag: tar.TypeDir, Mode: mode}}
	}
	link := func(name, to string) entry { // to a file that file returns
		return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeLink, Linkname: to, Mode: 0o644}}
	}
	symlink := func(name, to string) entry {
		return entry{Header: tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to, Mode: 0o777}}
	}
	special := func(name string, kind byte, major, minor int64) entry {
		return entry{Header: tar.Header{Name: name, Typeflag: kind, Mode: 0o660, Gid: 6, Devmajor: major, Devminor: minor}}
	}
	with := func(e entry, xattrs map[string]string) entry {
		e.PAXRecords = map[string]string{}
		for name, value := range xattrs {
			e.PAXRecords["SCHILY.xattr."+name] = value
		}
		return e
	}
	const (
		netRaw = "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"
		// acl gives user 1000 the right to read, beside the mode 0640.
		acl = "\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x02\x00\x04\x00\xe8\x03\x00\x00\x04\x00\x04\x00\xff\xff\xff\xff\x10\x00\x04\x00\xff\xff\xff\xff\x20\x00\x00\x00\xff\xff\xff\xff"
	)
	deep := strings.Repeat("d/", 200)
	lower := []entry{
		folder("etc", 0o755), folder("dev", 0o755), folder("bin", 0o751), folder("opaque", 0o755), folder("opaque/in", 0o700), folder("gone", 0o755), folder("becomes-file", 0o755),
		folder("kept", 0o2775), folder("many", 0o755), folder("tmp", 0o1777),
		file("bin/a", "a"), link("bin/b", "bin/a"), link("b-too", "bin/a"), link("c-too", "bin/b"), symlink("link", "bin/a"), link("linked-link", "link"),
		{Header: tar.Header{Name: "link-of-ann", Typeflag: tar.TypeSymlink, Linkname: "bin/a", Uid: 7, Gid: 8}},
		symlink("long-link", strings.Repeat("target/", 500)), symlink("to-folder", "/bin"),
		file("opaque/old", "old"), file("opaque/in/older", "older"), file("removed", "removed"), file("gone/file", "x"), file("becomes-folder", "x"), file("becomes-file/x", "x"),
		file("becomes-link", "x"), file("replaced", "old"),
		file("kept/file", "kept"), file("etc/passwd", "root:x:0:0::/:/show\n"),
		{tar.Header{Name: "setuid", Mode: 0o6755, Uid: 4294967294, Gid: 3e9}, "x"},
		{tar.Header{Name: "sticky", Mode: 0o1000}, "x"},
		{tar.Header{Name: "late", Mode: 0o400, ModTime: time.Unix(1<<33, 1)}, "after 2106"},
		with(file("ping", "x"), map[string]string{"security.capability": netRaw, "user.a": "b"}),
		with(entry{tar.Header{Name: "shared", Mode: 0o640}, "x"}, map[string]string{"system.posix_acl_access": acl}),
		with(folder("attributes", 0o755), map[string]string{"trusted.a": "b", "user.large": strings.Repeat("v", 3000)}),
		special("dev/null", tar.TypeChar, 1, 3), special("dev/sda", tar.TypeBlock, 8, 300), special("device", tar.TypeBlock, 259, 70000), special("fifo", tar.TypeFifo, 0, 0),
		file(strings.Repeat("n", 255), "long"), file("Grüße, 世界 🐄", "UTF-8"), file("new\nline\ttab", "x"), file("no UTF-8 \xff\xfe", "x"), file(" ", "x"), file("-rf", "x"), file(`back\slash"'$(x)`, "x"),
		file("empty", ""), file("zeros", strings.Repeat("\x00", 5<<20)+"end"), file("block", strings.Repeat("b", 4096)), file("blocks", strings.Repeat("b", 2<<20+1)),
	}
	for n := range strings.Count(deep, "/") {
		lower = append(lower, folder(strings.TrimSuffix(deep[:2*n+2], "/"), 0o711))
	}
	lower = append(lower, file(deep+"end", "deep"))
	for n := range 300 {
		lower = append(lower, file(fmt.Sprintf("many/%0100d", n), fmt.Sprint(n)))
	}
	upper := []entry{
		// The files of the layer stand before the entry that hides those below.
		folder("opaque", 0o750), file("opaque/new", "new"), file("opaque/.wh..wh..opq", ""), folder("opaque/in", 0o711), file("opaque/in/newer", "newer"),
		file(".wh.removed", ""), file(".wh.gone", ""), file(".wh.missing", ""),
		file("becomes-file", "y"), folder("becomes-folder", 0o700), file("becomes-folder/x", "y"), symlink("becomes-link", "elsewhere"),
		file("replaced", "new"),
		folder("kept", 0o700), file("kept/second", "x"), link("kept/third", "kept/second"),
		folder("many", 0o755), file(fmt.Sprintf("many/.wh.%0100d", 7), ""),
	}
	third := []entry{folder("gone", 0o500), file("gone/again", "x"), folder("becomes-file", 0o500), file("becomes-file/again", "x"), file(".wh.becomes-folder", "")}
	return [][]byte{layerOf(t, lower...), layerOf(t, upper...), layerOf(t, third...)}
}
