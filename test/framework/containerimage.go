// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"cloudnative.tw/drover/test/assert"
)

// busyBoxNames are the programs of an image of BusyBoxImage.
var busyBoxNames = strings.Fields("sh ash cat echo env hostname httpd id ip kill ls mkdir mount nc pwd rm sleep stat stty tar test touch true false tty wget df head")

// BusyBoxImage returns a container image with BusyBox, a user ann of the groups ann and staff, and the given configuration.
func BusyBoxImage(t testing.TB, config v1.Config) v1.Image {
	t.Helper()
	root, err := RepositoryRoot()
	assert.NoError(t, err)
	path, err := exec.CommandContext(t.Context(), filepath.Join(root, "hack", "busybox.sh")).Output()
	assert.NoError(t, err)
	program, err := os.ReadFile(strings.TrimSpace(string(path)))
	assert.NoError(t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(h tar.Header, content string) {
		h.Size = int64(len(content))
		assert.NoError(t, errors.Join(w.WriteHeader(&h), assert.ErrorOf(io.WriteString(w, content))))
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(program))
	for _, name := range busyBoxNames {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeLink, Linkname: "bin/busybox", Mode: 0o755}, "")
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\n")
	add(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nann:x:1000:\nstaff:x:50:ann\n")
	add(tar.Header{Name: "home/ann/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1000, Gid: 1000}, "")
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, "")
	assert.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	assert.NoError(t, err)
	image, err := mutate.AppendLayers(empty.Image, layer)
	assert.NoError(t, err)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		Architecture: "amd64", OS: "linux", Config: config,
		RootFS: rootFSOf(t, image),
	})
	assert.NoError(t, err)
	return image
}

// rootFSOf returns what the configuration of an image says of its layers.
func rootFSOf(t testing.TB, image v1.Image) v1.RootFS {
	t.Helper()
	file, err := image.ConfigFile()
	assert.NoError(t, err)
	return file.RootFS
}

// GuestKernel returns the folder of the kernel that boots container images.
func GuestKernel(t testing.TB) string {
	t.Helper()
	guest, err := BuildImageGuest()
	assert.NoError(t, err)
	return filepath.Dir(guest.Kernel)
}
