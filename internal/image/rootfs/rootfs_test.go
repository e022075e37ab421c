// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rootfs_test

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/bugs/bugstest"
	"cloudnative.tw/drover/test/framework/filetree"
	"cloudnative.tw/drover/test/tier"
)

// TestOneFile checks an image of one file, such as a static program.
func TestOneFile(t *testing.T) {
	t.Parallel()
	checkConverted(t, newArchive(t).add(tar.Header{Name: "app", Mode: 0o755}, "program").bytes())
}

// TestNoLayers checks an image without any layer.
func TestNoLayers(t *testing.T) {
	t.Parallel()
	checkConverted(t)
}

// TestBusyBox checks an image with 269 names of one program, which take the space of one.
func TestBusyBox(t *testing.T) {
	t.Parallel()
	const names, size = 269, 1 << 20
	a := newArchive(t).folder("bin/").add(tar.Header{Name: "bin/[", Mode: 0o755}, string(randomBytes(size)))
	for k := range names {
		a.link(fmt.Sprintf("bin/applet-%d", k), "bin/[")
	}
	layer := a.bytes()
	tree := checkConverted(t, layer)
	f := tree["bin/applet-5"]
	assert.True(t, f.Links == names+1, "it has %+v", f)
	info, err := convertLayers(t, layer).Stat()
	assert.NoError(t, err)
	assert.True(t, info.Size() <= size*11/10, "it has %d bytes, of a program of %d", info.Size(), size)
}

// randomBytes returns the same bytes each time.
func randomBytes(size int) []byte {
	b := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

// TestOdd checks what images have seldom, in one.
func TestOdd(t *testing.T) {
	t.Parallel()
	lower := newArchive(t).
		add(tar.Header{Name: "./", Typeflag: tar.TypeDir, Mode: 0o711, Uid: 5, ModTime: time.Unix(1e9, 5e8), Format: tar.FormatPAX}, "").
		folder("usr/").folder("usr/bin/").symlink("bin", "usr/bin").symlink("loop", "loop").
		file("usr/bin/a", "a").link("usr/bin/b", "usr/bin/a").file("bin/through", "a link of this layer").link("through", "bin/a").
		folder("opaque/").file("opaque/old", "old").folder("opaque/in/").file("opaque/in/older", "older").
		file("removed", "removed").folder("gone/").file("gone/file", "x").file("becomes-folder", "x").folder("becomes-file/").file("becomes-file/x", "x").
		folder("attributes/").file("attributes/kept", "kept").folder("replaced/").symlink("replaced/by-folder", "/usr/bin").
		file("kept-twin", "twin").link("replaced-twin", "kept-twin").symlink("parent", "..").
		symlink("out", "../../../../etc").add(tar.Header{Name: "closed-link", Typeflag: tar.TypeSymlink, Linkname: "same", Mode: 0o400}, "").bytes()
	upper := newArchive(t).
		add(tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "git"}}, "").
		file("parent/in", "instead of a link of the layer below").
		folder("replaced/").folder("replaced/by-folder/").file("replaced/by-folder/.wh..wh..opq", "").file("replaced/by-folder/new", "new").
		// The files of the layer stand before the entry that hides those below.
		file("opaque/new", "new").file("opaque/.wh..wh..opq", "").file("opaque/in/newer", "newer").
		file(".wh.removed", "").file(".wh.gone", "").file(".wh.missing", "").file("absent/.wh.x", "").
		folder("becomes-folder/").file("becomes-folder/x", "y").file("becomes-file", "y").
		add(tar.Header{Name: "attributes/", Typeflag: tar.TypeDir, Mode: 0o1777, Gid: 3}, "").
		file("replaced-twin", "replaced").
		file("../../above", "above").file("/absolute", "absolute").file("out/passwd", "inside").
		file("a/b/c/d/e", "without folders").
		file(".wh..wh.aufs", "").
		add(tar.Header{Name: "dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3, Mode: 0o666}, "").
		add(tar.Header{Name: "dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8, Devminor: 300, Mode: 0o660}, "").
		add(tar.Header{Name: "dev/pipe", Typeflag: tar.TypeFifo, Mode: 0o600}, "").
		add(tar.Header{Name: "setuid", Mode: 0o6755, Uid: 4294967294, Gid: 3e9, Format: tar.FormatPAX}, "x").
		add(tar.Header{Name: "ping", Mode: 0o755, Format: tar.FormatPAX, PAXRecords: map[string]string{
			"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x20\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
		}}, "x").
		add(tar.Header{Name: "attributed", Mode: 0o755, Format: tar.FormatPAX, PAXRecords: map[string]string{
			"SCHILY.xattr.user.a": "b", "SCHILY.xattr.com.apple.provenance": "left out",
		}}, "x").
		add(tar.Header{Name: strings.Repeat("directory/", 100) + strings.Repeat("n", 255), Format: tar.FormatPAX}, "long").
		add(tar.Header{Name: "gnu-" + strings.Repeat("n", 240), Format: tar.FormatGNU}, "long").
		add(tar.Header{Name: "old", ModTime: time.Unix(-1e9, 0), Format: tar.FormatPAX}, "before 1970").bytes()
	tree := checkConverted(t, lower, upper)
	for path, exists := range map[string]bool{
		"usr/bin/through": true, "parent/in": true, "usr/bin/a": true, "replaced/by-folder/new": true,
		"opaque/old": false, "opaque/new": true, "opaque/in/older": false, "opaque/in/newer": true,
		"removed": false, "gone": false, "becomes-file/x": false, "attributes/kept": true, "above": true, "absolute": true,
		"out/passwd": true, "etc/passwd": false, "missing": false, "absent": true, "a/b/c/d": true,
	} {
		_, got := tree[path]
		assert.True(t, got == exists, "%s exists: %v, want %v", path, got, exists)
	}
	twin, replaced := tree["kept-twin"], tree["replaced-twin"]
	assert.True(t, twin.Links == 1 && twin.Hash != replaced.Hash, "the twins are %+v and %+v", twin, replaced)
	// An engine's export has none of these.
	root := tree["."]
	assert.True(t, root.Mode == unix.S_IFDIR|0o711 && root.UID == 5 && root.Seconds == 1e9 && root.Nanoseconds == 5e8, "the root is %+v", root)
	assert.Equal(t, "the attributes", tree["attributed"].Xattrs, `user.a="b"`)
	assert.Equal(t, "a file from before 1970 has the time", tree["old"].Seconds, -1e9)
}

// TestSpecification checks layers that Docker takes in another way than the specification of images says.
func TestSpecification(t *testing.T) {
	t.Parallel()
	lower := newArchive(t).folder("a/").file("a/old", "old").bytes()
	for name, c := range map[string]struct {
		layer []byte
		files []string
	}{
		"a folder is removed and made": {newArchive(t).file(".wh.a", "").folder("a/").file("a/new", "new").bytes(), []string{".", "a", "a/new"}},
		"the root is opaque":           {newArchive(t).file(".wh..wh..opq", "").file("new", "new").bytes(), []string{".", "new"}},
		"notes of AUFS":                {newArchive(t).file(".wh..wh.plnk/1.2", "").bytes(), []string{".", "a", "a/old"}},
	} {
		tree := filetree.Read(t, convertLayers(t, lower, c.layer))
		got := slices.Sorted(maps.Keys(tree))
		assert.True(t, slices.Equal(got, c.files), "%s: got %q, want %q", name, got, c.files)
	}
}

// TestTakenMore checks layers that Docker refuses, and whose meaning is plain all the same.
func TestTakenMore(t *testing.T) {
	t.Parallel()
	lower := newArchive(t).folder("usr/").file("usr/a", "a").link("usr/b", "usr/a").bytes()
	for name, c := range map[string]struct {
		layer []byte
		is    func(filetree.Tree) bool
	}{
		"a path twice":             {newArchive(t).file("twice", "1").file("twice", "22").bytes(), func(tree filetree.Tree) bool { return tree["twice"].Size == 2 }},
		"a further name of itself": {newArchive(t).file("same", "1").link("same", "same").bytes(), func(tree filetree.Tree) bool { return tree["same"].Links == 1 }},
		"a twin of a file of a layer below": {newArchive(t).link("c", "usr/a").bytes(), func(tree filetree.Tree) bool {
			return tree["c"].Twin == tree["usr/b"].Twin && tree["usr/a"].Links == 3
		}},
		"a link to a folder of a layer below": {newArchive(t).symlink("lib", "usr").file("lib/c", "c").bytes(), func(tree filetree.Tree) bool { return tree["usr/c"].Size == 1 }},
		"a link to no folder":                 {newArchive(t).symlink("lib", "none").file("lib/c", "c").bytes(), func(tree filetree.Tree) bool { return tree["none/c"].Size == 1 }},
		"a file, removed below after that":    {newArchive(t).file("usr/a", "new").file("usr/.wh.a", "").bytes(), func(tree filetree.Tree) bool { return tree["usr/a"].Size == 3 && tree["usr/b"].Links == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := unpackByEngine(t, lower, c.layer)
			assert.True(t, err != nil, "Docker takes it: TestOdd can have it")
			tree := filetree.Read(t, convertLayers(t, lower, c.layer))
			assert.True(t, c.is(tree), "got %v", tree)
		})
	}
}

// TestGenerated checks images of layers that are made at random.
func TestGenerated(t *testing.T) {
	t.Parallel()
	first, images := uint64(1), 8
	if tier.IsFull() {
		first, images = rand.Uint64(), 300 //nolint:gosec // of a test
	}
	for k := range images {
		seed := first + uint64(k)
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			t.Parallel()
			checkConverted(t, generateLayers(t, rand.New(rand.NewPCG(seed, 0)))...) //nolint:gosec // of a test
		})
	}
}

// TestRefused checks that what no root can have is refused by its name.
func TestRefused(t *testing.T) {
	t.Parallel()
	xattr := func(name, value string) tar.Header {
		return tar.Header{Name: "bad", Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr." + name: value}}
	}
	deep := newArchive(t)
	for k := range 6 {
		deep.symlink(fmt.Sprintf("%d", k), strings.Repeat("d/", 100)+"end").file(fmt.Sprintf("%d/%d", k, k), "x")
	}
	for name, c := range map[string]struct {
		layer []byte
		says  string
	}{
		"xz":                    {[]byte("\xfd7zXZ\x00\x00\x04\xe6\xd6\xb4\x46"), "compressed by xz"},
		"a type":                {newArchive(t).add(tar.Header{Name: "bad", Typeflag: 'V'}, "").bytes(), `the entry "bad": it has the type 'V'`},
		"a contiguous file":     {newArchive(t).add(tar.Header{Name: "bad", Typeflag: tar.TypeCont}, "").bytes(), `type '7'`},
		"overlay's attribute":   {newArchive(t).add(xattr("trusted.overlay.opaque", "y"), "").bytes(), `"bad": it has the attribute "trusted.overlay.opaque"`},
		"overlay's user one":    {newArchive(t).add(xattr("user.overlay.redirect", "/x"), "").bytes(), `"user.overlay.redirect"`},
		"a large attribute":     {newArchive(t).add(xattr("user.a", strings.Repeat("v", 70000)), "").bytes(), `"user.a"`},
		"a long attribute":      {newArchive(t).add(xattr("user."+strings.Repeat("n", 256), "v"), "").bytes(), `"bad": it cannot have the extended attribute`},
		"overlay's device":      {newArchive(t).add(tar.Header{Name: "bad", Typeflag: tar.TypeChar}, "").bytes(), `"bad": it is the device`},
		"a high device":         {newArchive(t).add(tar.Header{Name: "bad", Typeflag: tar.TypeBlock, Devmajor: 5000}, "").bytes(), `"bad": the numbers of the device`},
		"a long name":           {newArchive(t).file("a/"+strings.Repeat("n", 256), "").bytes(), "a name that no file can have"},
		"a long path":           {newArchive(t).file(strings.Repeat("directory/", 410)+"x", "").bytes(), "it may have 4096"},
		"a long target":         {newArchive(t).symlink("bad", strings.Repeat("t", 4096)).bytes(), `"bad": the target of the link`},
		"a link to nothing":     {newArchive(t).link("bad", "missing/file").bytes(), `"bad" is a hard link to "missing/file"`},
		"a link to a folder":    {newArchive(t).folder("folder").link("bad", "folder").bytes(), `"bad" is a hard link to "folder"`},
		"a link to above":       {newArchive(t).link("bad", "../../etc/shadow").bytes(), `"bad" is a hard link to "etc/shadow"`},
		"a file as root":        {newArchive(t).file("./.", "x").bytes(), "it is the root"},
		"a link as root":        {newArchive(t).file("x", "x").link("/", "x").bytes(), "makes the root a link"},
		"a whiteout of dots":    {newArchive(t).file("a/.wh...", "").bytes(), "where no file can be removed"},
		"a whiteout's child":    {newArchive(t).file(".wh.a/b", "").bytes(), "where no file can be removed"},
		"a link in a circle":    {newArchive(t).symlink("loop", "loop").file("loop/x", "").bytes(), "more than 40 symbolic links"},
		"attributes of links":   {linksWithAttributes(t), `"further-1": its extended attributes take`},
		"many folders":          {newArchive(t).file(strings.Repeat("d/", 520)+"x", "").bytes(), "more than 512 folders"},
		"a negative user":       {newArchive(t).add(tar.Header{Name: "bad", Uid: -1, Format: tar.FormatGNU}, "").bytes(), `"bad": it is of user -1`},
		"no user":               {newArchive(t).add(tar.Header{Name: "bad", Gid: 1<<32 - 1, Format: tar.FormatPAX}, "").bytes(), "group 4294967295"},
		"no archive":            {bytes.Repeat([]byte("no archive"), 100), "layer 1: "},
		"a damaged archive":     {gzipped(t, newArchive(t).file("a", strings.Repeat("x", 10000)).bytes())[:60], "layer 1: "},
		"a sparse file":         {sparse(), "sparse"},
		"a negative size":       {sized("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"), "layer 1: "},
		"a size of 8 EiB":       {sized("\x80\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"), "layer 1: "},
		"a size beyond its end": {sized("00000010000\x00"), "layer 1: "},
		"folders behind links":  {deep.bytes(), ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layers := [][]byte{c.layer}
			_, result := convertRequest(t, requestOf(layers), layers)
			if c.says == "" {
				assert.True(t, result.Reason == "", "got %+v", result)
				return
			}
			assert.True(t, result.Reason == rootfs.ReasonContent && strings.Contains(result.Message, c.says), "got %+v, want %q", result, c.says)
		})
	}
}

// linksWithAttributes returns a layer with a file whose further names add attributes to it.
func linksWithAttributes(t testing.TB) []byte {
	t.Helper()
	a := newArchive(t).file("file", "")
	for k := range 2 {
		a.add(tar.Header{Name: fmt.Sprintf("further-%d", k), Typeflag: tar.TypeLink, Linkname: "file", Format: tar.FormatPAX, PAXRecords: map[string]string{
			fmt.Sprintf("SCHILY.xattr.user.%d", k): strings.Repeat("v", 40_000),
		}}, "")
	}
	return a.bytes()
}

// sized returns an archive that ends with the header of a file whose size it says in that way.
func sized(size string) []byte {
	header := make([]byte, 512)
	copy(header, "a")
	copy(header[100:], "0000444\x000000000\x000000000\x00"+size+"00000000000\x00        0")
	copy(header[257:], "ustar\x0000")
	return withSum(header)
}

// withSum adds the checksum of a header.
func withSum(header []byte) []byte {
	sum := 0
	for _, b := range header {
		sum += int(b)
	}
	copy(header[148:], fmt.Sprintf("%06o\x00 ", sum))
	return header
}

// sparse returns an archive of a sparse file in the form of GNU.
func sparse() []byte {
	header := make([]byte, 512)
	copy(header, "a")
	copy(header[100:], "0000444\x000000000\x000000000\x0000000000000\x0000000000000\x00        S")
	copy(header[257:], "ustar  \x00")
	copy(header[386:], "00000000000\x0000000000000\x00")
	copy(header[483:], "00000001000\x00")
	return append(withSum(header), make([]byte, 1024)...)
}

// TestBombs checks that limits of bytes hold: of the sent, the decompressed and the written ones.
func TestBombs(t *testing.T) {
	t.Parallel()
	zeros := newArchive(t).file("zeros", strings.Repeat("\x00", 16<<20)).bytes()
	small := newArchive(t)
	for k := range 5000 {
		small.file(fmt.Sprint(k), "x")
	}
	padded := append(newArchive(t).file("a", "x").bytes(), make([]byte, 16<<20)...)
	for name, c := range map[string]struct {
		layer      []byte
		maxContent int64
		maxSize    int64
	}{
		"content":          {gzipped(t, zeros), 8 << 20, maxBytes},
		"zstd":             {zstandard(t, zeros), 8 << 20, maxBytes},
		"after its end":    {gzipped(t, padded), 8 << 20, maxBytes},
		"output":           {gzipped(t, zeros), maxBytes, 8 << 20},
		"many small files": {gzipped(t, small.bytes()), maxBytes, 8 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			layers := [][]byte{c.layer}
			order := requestOf(layers)
			order.MaxContent, order.MaxSize = c.maxContent, c.maxSize
			out, result := convertRequest(t, order, layers)
			want := rootfs.ReasonTooLarge
			if c.maxSize < maxBytes {
				want = rootfs.ReasonOutput
			}
			assert.True(t, result.Reason == want, "got %+v", result)
			info, err := out.Stat()
			assert.True(t, err == nil && info.Size() <= c.maxSize, "the file has %d bytes, %v", info.Size(), err)
		})
	}
}

// TestSlowLinks checks that links which lead through each other do not take time without an end.
func TestSlowLinks(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	for k := range 39 {
		a.symlink(fmt.Sprintf("l%d", k), fmt.Sprintf("l%d/", k+1)+strings.Repeat("x/../", 800))
	}
	for k := range 20_000 {
		a.file(fmt.Sprintf("l0/.wh.%d", k), "")
	}
	layers := [][]byte{a.bytes()}
	layers = append(layers, layers[0])
	_, result := convertRequest(t, requestOf(layers), layers)
	assert.True(t, result.Reason == rootfs.ReasonContent && strings.Contains(result.Message, "too many symbolic links"), "got %+v", result)
}

// TestManyAttributes checks that further names of a file with many attributes do not take time without an end.
func TestManyAttributes(t *testing.T) {
	t.Parallel()
	records := map[string]string{}
	for k := range 4000 {
		records[fmt.Sprintf("SCHILY.xattr.user.%d", k)] = "v"
	}
	a := newArchive(t).add(tar.Header{Name: "file", Format: tar.FormatPAX, PAXRecords: records}, "")
	for k := range 15_000 {
		a.add(tar.Header{Name: fmt.Sprint(k), Typeflag: tar.TypeLink, Linkname: "file", Format: tar.FormatPAX, PAXRecords: map[string]string{"SCHILY.xattr.user.0": "v"}}, "")
	}
	layers := [][]byte{a.bytes()}
	_, result := convertRequest(t, requestOf(layers), layers)
	assert.True(t, result.Reason == rootfs.ReasonContent && strings.Contains(result.Message, "too many hard links"), "got %+v", result)
}

// TestRemovedData checks that what a higher layer removes is not in the file.
func TestRemovedData(t *testing.T) {
	t.Parallel()
	out := convertLayers(t,
		newArchive(t).file("kept", "kept-content").file("key", strings.Repeat("secret-key", 1000)).file("key2", "other-secret").bytes(),
		newArchive(t).file(".wh.key", "").file("key2", "replaced-content").bytes())
	content, err := os.ReadFile(out.Name())
	assert.NoError(t, err)
	for text, isThere := range map[string]bool{"kept-content": true, "secret-key": false, "other-secret": false, "replaced-content": true} {
		assert.True(t, bytes.Contains(content, []byte(text)) == isThere, "it has %q: want %v", text, isThere)
	}
}

// TestManyLayers checks 30 layers that replace, remove and add files.
func TestManyLayers(t *testing.T) {
	t.Parallel()
	var layers [][]byte
	for k := range 30 {
		a := newArchive(t).file("same", fmt.Sprint("content ", k)).file(fmt.Sprintf("dir-%d/file", k%10), fmt.Sprint(k)).link(fmt.Sprintf("twin-%d", k), "same")
		if k%7 == 6 {
			a.file(fmt.Sprintf("dir-%d/.wh..wh..opq", k%10), "").file(fmt.Sprintf(".wh.twin-%d", k-3), "")
		}
		layers = append(layers, a.bytes())
	}
	checkConverted(t, layers...)
}

// TestManyFiles checks 100,000 files, few of which have a content: each takes a block.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	const files = 100_000
	a := newArchive(t).folder("./")
	for k := range 10 {
		a.folder(fmt.Sprint(k))
	}
	for k := range 1000 {
		a.folder(fmt.Sprintf("%d/%d", k%10, k))
	}
	for k := range files {
		content := ""
		if k%100 == 0 {
			content = fmt.Sprint(k)
		}
		a.file(fmt.Sprintf("%d/%d/%d", k%10, k%1000, k), content)
	}
	layer := a.bytes()
	out := convertLayers(t, layer)
	want, err := filetree.ReadArchive(bytes.NewReader(layer))
	assert.NoError(t, err)
	if mounted, ok := filetree.ReadMounted(t, out.Name()); ok {
		assert.Equal(t, "Linux has it otherwise:\n", want.Diff(mounted), "")
		return
	}
	assert.Equal(t, "another reader has it otherwise:\n", want.Diff(filetree.Read(t, out)), "")
}

// TestSystem checks parts of this host's system against the result of tar.
func TestSystem(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may unpack files of other users")
	}
	var layer bytes.Buffer
	arguments := []string{"--xattrs", "--format=pax", "-C", "/", "-c"}
	for _, path := range []string{"bin", "sbin", "etc/alternatives", "usr/share/zoneinfo", "usr/bin/passwd", "usr/bin/ping", "usr/bin/perl", "var/mail", "dev/null"} {
		if _, err := os.Lstat(filepath.Join("/", path)); err == nil {
			arguments = append(arguments, path)
		}
	}
	pack := exec.CommandContext(t.Context(), "tar", arguments...)
	pack.Stdout = &layer
	assert.NoError(t, pack.Run())
	dir := filepath.Join(t.TempDir(), "tree")
	assert.NoError(t, os.Mkdir(dir, 0o755))
	unpack := exec.CommandContext(t.Context(), "tar", "--xattrs", "--xattrs-include=*", "-C", dir, "-xp")
	unpack.Stdin = bytes.NewReader(layer.Bytes())
	assert.NoError(t, unpack.Run())
	out := convertLayers(t, layer.Bytes())
	want, have := filetree.ReadFolder(t, dir), filetree.Read(t, out)
	for _, tree := range []filetree.Tree{want, have} {
		for _, path := range []string{".", "etc", "usr", "usr/share", "usr/bin", "var", "dev"} { // which lack an entry
			delete(tree, path)
		}
	}
	assert.Equal(t, "tar has it otherwise:\n", want.Diff(have), "")
}

// TestDisk checks that only an image of nothing but a disk counts as that.
func TestDisk(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		layers [][]byte
		isDisk bool
	}{
		"a disk":         {[][]byte{newArchive(t).file("disk/a.img", "disk content").bytes()}, true},
		"folder, hidden": {[][]byte{newArchive(t).folder("disk").file("disk/.x", "x").file("disk/a.img", "disk content").bytes()}, true},
		"two":            {[][]byte{newArchive(t).file("disk/a", "x").file("disk/b", "x").bytes()}, false},
		"more":           {[][]byte{newArchive(t).file("disk/a", "x").bytes(), newArchive(t).file("bin/sh", "x").bytes()}, false},
		"none":           {[][]byte{newArchive(t).folder("disk").bytes()}, false},
		"a link":         {[][]byte{newArchive(t).symlink("disk", "/").bytes()}, false},
		"no layers":      {nil, false},
	} {
		out, result := convertRequest(t, requestOf(c.layers), c.layers)
		assert.True(t, (result.Disk != nil) == c.isDisk && result.Reason == "", "%s: got %+v", name, result)
		if result.Disk == nil {
			continue
		}
		content := make([]byte, result.Disk.Size)
		_, err := out.ReadAt(content, result.Disk.Offset)
		assert.NoError(t, err)
		assert.Equal(t, name+": the disk", string(content), "disk content")
	}
}

// TestSend checks that a layer of another size than announced is an error.
func TestSend(t *testing.T) {
	t.Parallel()
	for _, size := range []int64{2, 4} {
		err := rootfs.Send(io.Discard, rootfs.Request{Layers: []int64{size}}, func(int) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("123")), nil
		})
		assert.ErrorSays(t, fmt.Sprint(size), err, "but its manifest states")
	}
}

// TestFullDisk checks that a full disk is told from other failures.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("drover-test", dir, "tmpfs", 0, "size=1M"); err != nil {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	out, err := os.Create(filepath.Join(dir, "root"))
	assert.NoError(t, err)
	defer func() { _ = out.Close() }()
	layer := newArchive(t).file("a", string(randomBytes(4<<20))).bytes()
	_, err = rootfs.ConvertHere(t.Context(), requestOf([][]byte{layer}), func(int) (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil }, output(t, out))
	_, ok := errors.AsType[*rootfs.WriteError](err)
	assert.True(t, ok, "got %v", err)
	assert.ErrorSays(t, "ConvertHere", err, "must stay free")
	result := rootfs.Convert(strings.NewReader("\x00\x00"), output(t, out))
	assert.True(t, result.Reason == rootfs.ReasonFailed, "got %+v", result)
}

// output returns a file as a conversion writes to it.
func output(t testing.TB, f *os.File) erofs.File {
	t.Helper()
	return &diskspace.File{File: f, Disk: &diskspace.Disk{Dir: filepath.Dir(f.Name())}}
}

// TestReceive checks which changes of its output a conversion cannot have made.
func TestReceive(t *testing.T) {
	t.Parallel()
	const most = 1 << 20
	head := func(kind byte, at, size uint64) string {
		return string(binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64([]byte{kind}, at), size))
	}
	for name, c := range map[string]struct{ sent, says string }{
		"nothing":           {"", ""},
		"all of it":         {head('t', 0, most) + head('w', most-1, 1) + "x" + head('c', 0, most), ""},
		"more":              {head('w', most, 1) + "x", "changes 1 bytes at 1048576 of its output, which may have 1048576"},
		"a negative offset": {head('w', 1<<63, 1) + "x", "changes 1 bytes"},
		"a negative size":   {head('c', 0, 1<<63), "of its output"},
		"a sum too large":   {head('c', most, 1<<62), "of its output"},
		"a large file":      {head('t', 0, most+1), "changes 1048577 bytes"},
		"another change":    {head('x', 0, 0), "unknown change of its output, 'x'"},
		"half a head":       {head('w', 0, 1)[:5], "unexpected EOF"},
		"half a write":      {head('w', 0, 10) + "x", "unexpected EOF"},
		"a head alone":      {head('w', 0, 10), "unexpected EOF"},
	} {
		f, err := os.Create(filepath.Join(t.TempDir(), "root"))
		assert.NoError(t, err)
		err = rootfs.Receive(strings.NewReader(c.sent), output(t, f), most)
		assert.ErrorSays(t, name, err, c.says)
		info, err := f.Stat()
		assert.True(t, err == nil && info.Size() <= most, "%s: the file has %+v, %v", name, info, err)
		assert.NoError(t, f.Close())
	}
}

// TestSeededBugs checks that the tests of this package find the bugs of its files.
func TestSeededBugs(t *testing.T) {
	t.Parallel()
	bugstest.Check(t, "internal/image/rootfs", nil, "-test.run=TestOdd|TestSpecification|TestTakenMore")
}
