// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package diskimage_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

const mib = 1 << 20

func probe(t *testing.T, path string) (diskimage.Info, error) {
	t.Helper()
	f, err := os.Open(path)
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	assert.NoError(t, err)
	return diskimage.Probe(f, info.Size())
}

// rawDisk returns a disk with an MBR and data in it.
func rawDisk(t *testing.T) string {
	t.Helper()
	content := bytes.Repeat([]byte("drover! "), 3*mib/8)
	copy(content[510:], "\x55\xaa")
	return file(t, string(content))
}

func file(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// made returns an image that qemu-img makes.
func made(t *testing.T, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "made")
	for i, arg := range args {
		args[i] = strings.ReplaceAll(arg, "OUT", path)
	}
	framework.RunQEMUImg(t, args...)
	return path
}

// Places in the header of a qcow2 image.
const (
	l1Size = 36
	// encryption is the method's number. qemu-img cannot make a LUKS image in a
	// test: it measures the CPU first, which fails on a busy one.
	encryption = 32
	l1Offset   = 40
)

// patched returns an image in which a number of so many bits was changed.
func patched(t *testing.T, path string, offset int64, bits int, value uint64) string {
	t.Helper()
	number := binary.BigEndian.AppendUint64(nil, value)[8-bits/8:]
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	assert.NoError(t, err)
	_, err = f.WriteAt(number, offset)
	assert.NoError(t, errors.Join(err, f.Close()))
	return path
}

// l1Of returns where the L1 table of an image begins.
func l1Of(t *testing.T, path string) int64 {
	t.Helper()
	content := framework.ReadFile(t, path)
	return int64(binary.BigEndian.Uint32([]byte(content[l1Offset+4:]))) // the lower half
}

// longL1 returns a disk of 1 GiB, for which two entries of the L1 table suffice, and
// which has a third that leads nowhere.
func longL1(t *testing.T) string {
	t.Helper()
	path := made(t, "create", "-q", "-f", "qcow2", "OUT", "1G")
	return patched(t, patched(t, path, l1Size, 32, 3), l1Of(t, path)+2*8, 64, 1<<40)
}

func TestProbeTakes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		path string
		want diskimage.Info
	}{
		"raw":                {rawDisk(t), diskimage.Info{Format: "raw", Size: 3 * mib}},
		"empty qcow2":        {made(t, "create", "-q", "-f", "qcow2", "OUT", "10G"), diskimage.Info{Format: "qcow2", Size: 10 << 30}},
		"qcow2, version 2":   {made(t, "create", "-q", "-f", "qcow2", "-o", "compat=0.10", "OUT", "1G"), diskimage.Info{Format: "qcow2", Size: 1 << 30}},
		"qcow2 with data":    {made(t, "convert", "-q", "-O", "qcow2", "-f", "raw", rawDisk(t), "OUT"), diskimage.Info{Format: "qcow2", Size: 3 * mib}},
		"compressed qcow2":   {made(t, "convert", "-q", "-c", "-O", "qcow2", "-f", "raw", rawDisk(t), "OUT"), diskimage.Info{Format: "qcow2", Size: 3 * mib}},
		"zstd qcow2":         {made(t, "convert", "-q", "-c", "-o", "compression_type=zstd", "-O", "qcow2", "-f", "raw", rawDisk(t), "OUT"), diskimage.Info{Format: "qcow2", Size: 3 * mib}},
		"qcow2 with wide L2": {made(t, "convert", "-q", "-o", "extended_l2=on", "-O", "qcow2", "-f", "raw", rawDisk(t), "OUT"), diskimage.Info{Format: "qcow2", Size: 3 * mib}},
		"more L1 than disk":  {longL1(t), diskimage.Info{Format: "qcow2", Size: 1 << 30}},
		"small clusters":     {made(t, "convert", "-q", "-o", "cluster_size=512", "-O", "qcow2", "-f", "raw", rawDisk(t), "OUT"), diskimage.Info{Format: "qcow2", Size: 3 * mib}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := probe(t, c.path)
			assert.True(t, err == nil && got == c.want, "got %+v and error %v, want %+v", got, err, c.want)
		})
	}
}

func TestProbeRefuses(t *testing.T) {
	t.Parallel()
	base := rawDisk(t)
	cut := func(path string, length int64) string {
		assert.NoError(t, os.Truncate(path, length))
		return path
	}
	for name, c := range map[string]struct{ path, says string }{
		"empty":                   {file(t, ""), "empty"},
		"text":                    {file(t, strings.Repeat("not a disk\n", 512)), "not a disk image"},
		"a page of HTML":          {file(t, "<html>404</html>"), "not a disk image"},
		"raw, cut off":            {cut(rawDisk(t), 2*mib+100), "cut off"},
		"VMDK":                    {made(t, "create", "-q", "-f", "vmdk", "OUT", "1G"), "VMDK"},
		"VHDX":                    {made(t, "create", "-q", "-f", "vhdx", "OUT", "1G"), "VHDX"},
		"VDI":                     {made(t, "create", "-q", "-f", "vdi", "OUT", "1G"), "VDI"},
		"gzip":                    {file(t, "\x1f\x8b\x08rest"), "gzip"},
		"backing file":            {made(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", base, "OUT"), "backing file"},
		"data file":               {made(t, "create", "-q", "-f", "qcow2", "-o", "data_file=OUT.data,data_file_raw=on", "OUT", "1G"), "data file"},
		"LUKS":                    {patched(t, made(t, "create", "-q", "-f", "qcow2", "OUT", "1G"), encryption, 32, 2), "encrypted"},
		"qcow2, header cut off":   {cut(made(t, "create", "-q", "-f", "qcow2", "OUT", "1G"), 60), "cut off"},
		"qcow2, tables cut off":   {cut(made(t, "create", "-q", "-f", "qcow2", "OUT", "1G"), 100_000), "cut off"},
		"qcow2, L1 too short":     {patched(t, made(t, "create", "-q", "-f", "qcow2", "OUT", "1G"), l1Size, 32, 1), "no sense"},
		"qcow2, L1 off a cluster": {patched(t, made(t, "create", "-q", "-f", "qcow2", "OUT", "1G"), l1Offset, 64, 512), "no sense"},
		"qcow2, unknown features": {file(t, "QFI\xfb\x00\x00\x00\x03"+strings.Repeat("\x00", 64)+"\x00\x00\x00\x00\x00\x01\x00\x00"+strings.Repeat("\x00", 40)), "unknown features"},
		"qcow2 of nonsense":       {file(t, "QFI\xfb\x00\x00\x00\x03"+strings.Repeat("\x00", 200)), "no sense"},
		"qcow2 of the future":     {file(t, "QFI\xfb\x00\x00\x00\x09"+strings.Repeat("\x00", 200)), "version 9"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.ErrorSays(t, "Probe", assert.ErrorOf(probe(t, c.path)), c.says)
		})
	}
}

// TestCheckDisk checks that a machine's disk may stand on an image, and point to nothing
// else.
func TestCheckDisk(t *testing.T) {
	t.Parallel()
	base := rawDisk(t)
	blank := filepath.Join(t.TempDir(), "blank")
	assert.NoError(t, diskimage.CreateQcow2(blank, mib, &diskimage.Backing{Path: base, Format: "raw"}))
	for name, c := range map[string]struct{ path, says string }{
		"new":       {blank, ""},
		"raw":       {base, "not a qcow2 image"},
		"data file": {made(t, "create", "-q", "-f", "qcow2", "-o", "data_file=OUT.data,data_file_raw=on", "OUT", "1G"), "data file"},
		"cut off":   {file(t, "QFI\xfb\x00\x00\x00\x03"), "cut off"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, err := os.Open(c.path)
			assert.NoError(t, err)
			defer func() { _ = f.Close() }()
			assert.ErrorSays(t, "CheckDisk", diskimage.CheckDisk(f), c.says)
		})
	}
}

// TestProbeIsCheap checks that what is read does not grow with the image, whatever its
// header says.
func TestProbeIsCheap(t *testing.T) {
	t.Parallel()
	path := made(t, "create", "-q", "-f", "qcow2", "-o", "cluster_size=512", "OUT", "10G")
	f, err := os.Open(path)
	assert.NoError(t, err)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	assert.NoError(t, err)
	read := &counter{ReaderAt: f}
	assert.NoError(t, assert.ErrorOf(diskimage.Probe(read, info.Size())))
	assert.True(t, read.n <= 4096, "it read %d bytes of %d", read.n, info.Size())
}

// counter counts what is read.
type counter struct {
	io.ReaderAt

	n int
}

func (c *counter) ReadAt(p []byte, offset int64) (int, error) {
	n, err := c.ReaderAt.ReadAt(p, offset)
	c.n += n
	return n, err
}

// FuzzProbe checks that no content causes a panic, yields an invalid size, or makes Probe read
// much: a header must not say how much is read.
func FuzzProbe(f *testing.F) {
	f.Add([]byte("QFI\xfb\x00\x00\x00\x03" + strings.Repeat("\xff", 200)))
	f.Add([]byte("QFI\xfb\x00\x00\x00\x02" + strings.Repeat("\x00", 200)))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, content []byte) {
		read := &counter{ReaderAt: bytes.NewReader(content)}
		info, err := diskimage.Probe(read, int64(len(content)))
		assert.True(t, err != nil || (info.Size > 0 && info.Size%512 == 0), "got %+v", info)
		assert.True(t, read.n <= 4096, "it read %d bytes of %d", read.n, len(content))
		assert.True(t, err != nil || info.Format != diskimage.Qcow2 || diskimage.CheckDisk(read) == nil, "an image that is taken is not a disk")
	})
}

// TestCreate checks the disks with qemu-img.
func TestCreate(t *testing.T) {
	t.Parallel()
	base := rawDisk(t)
	for name, c := range map[string]struct {
		size    int64
		backing *diskimage.Backing
	}{
		"blank":          {10 << 20, nil},
		"odd size":       {10<<20 + 1, nil},
		"large":          {10 << 40, nil},
		"the largest":    {1 << 50, nil},
		"on an image":    {5 * mib, &diskimage.Backing{Path: base, Format: "raw"}},
		"on an odd name": {5 * mib, &diskimage.Backing{Path: oddly(t, base), Format: "raw"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "disk")
			assert.NoError(t, diskimage.CreateQcow2(path, c.size, c.backing))
			framework.RunQEMUImg(t, "check", "-q", path)
			var got struct {
				Size    int64  `json:"virtual-size"`
				Backing string `json:"full-backing-filename"`
				Format  string `json:"backing-filename-format"`
			}
			assert.NoError(t, json.Unmarshal([]byte(framework.RunQEMUImg(t, "info", "--output=json", path)), &got))
			want := (c.size + 511) / 512 * 512
			assert.True(t, got.Size == want, "it has %d bytes, want %d", got.Size, want)
			if c.backing != nil {
				assert.True(t, got.Backing == c.backing.Path && got.Format == "raw", "it stands on %q of format %q", got.Backing, got.Format)
				shows(t, path, base)
			}
			err := diskimage.CreateQcow2(path, c.size, nil)
			assert.True(t, os.IsExist(err), "making it twice: %v", err)
		})
	}
}

// shows checks that the disk has the image's content, and takes data.
func shows(t *testing.T, disk, image string) {
	t.Helper()
	flat := filepath.Join(t.TempDir(), "flat")
	framework.RunQEMUImg(t, "convert", "-O", "raw", disk, flat)
	got := framework.ReadFile(t, flat)
	want := framework.ReadFile(t, image)
	assert.True(t, got[:len(want)] == want && !strings.Contains(got[len(want):], "d"), "the disk does not show its image")
	framework.RunQEMUImg(t, "resize", "-q", disk, "2G")
	framework.RunQEMUImg(t, "check", "-q", disk)
}

func oddly(t *testing.T, path string) string {
	t.Helper()
	odd := filepath.Join(t.TempDir(), `a,b="c" %s 漢.img`)
	assert.NoError(t, os.Link(path, odd))
	return odd
}

func TestCreateRefuses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		size    int64
		backing *diskimage.Backing
	}{
		"nothing":          {0, nil},
		"less":             {-1, nil},
		"too large":        {1<<50 + 1, nil},
		"endless name":     {mib, &diskimage.Backing{Path: strings.Repeat("x", 1024), Format: "raw"}},
		"folder not there": {mib, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "disk")
			if name == "folder not there" {
				path = filepath.Join(path, "disk")
			}
			assert.True(t, diskimage.CreateQcow2(path, c.size, c.backing) != nil, "no error")
			_, err := os.Stat(path)
			assert.True(t, err != nil, "it left a file")
		})
	}
}
