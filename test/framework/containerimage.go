// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
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
var busyBoxNames = strings.Fields("sh ash cat echo env hostname httpd id ip kill ls mkdir mount nc pwd rm sleep stat stty tar test touch true false tty wget df head wc")

// BusyBoxImage returns a container image with BusyBox, a user ann of the groups ann and staff, and the given configuration.
func BusyBoxImage(t testing.TB, config v1.Config) v1.Image {
	t.Helper()
	image, err := MakeBusyBoxImage(t.Context(), config)
	assert.NoError(t, err)
	return image
}

// MakeBusyBoxImage makes the image of BusyBoxImage.
func MakeBusyBoxImage(ctx context.Context, config v1.Config) (v1.Image, error) {
	layer, err := BusyBoxLayer(ctx)
	if err != nil {
		return nil, err
	}
	return LayersImage(config, layer)
}

// BusyBox returns the program.
func BusyBox(ctx context.Context) ([]byte, error) {
	root, err := RepositoryRoot()
	if err != nil {
		return nil, err
	}
	path, err := exec.CommandContext(ctx, filepath.Join(root, "hack", "busybox.sh")).Output()
	if err != nil {
		return nil, fmt.Errorf("fetching BusyBox: %w", err)
	}
	return os.ReadFile(strings.TrimSpace(string(path)))
}

// BusyBoxLayer returns the only layer of that image.
func BusyBoxLayer(ctx context.Context) ([]byte, error) {
	program, err := BusyBox(ctx)
	if err != nil {
		return nil, err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	var errs []error
	add := func(h tar.Header, content string) {
		h.Size = int64(len(content))
		errs = append(errs, w.WriteHeader(&h), assert.ErrorOf(io.WriteString(w, content)))
	}
	for _, folder := range []string{"bin/", "etc/", "home/"} {
		add(tar.Header{Name: folder, Typeflag: tar.TypeDir, Mode: 0o755}, "")
	}
	add(tar.Header{Name: "bin/busybox", Mode: 0o755}, string(program))
	for _, name := range busyBoxNames {
		add(tar.Header{Name: "bin/" + name, Typeflag: tar.TypeLink, Linkname: "bin/busybox", Mode: 0o755}, "")
	}
	add(tar.Header{Name: "etc/passwd", Mode: 0o644}, "root:x:0:0:root:/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:/bin/sh\n")
	add(tar.Header{Name: "etc/group", Mode: 0o644}, "root:x:0:\nann:x:1000:\nstaff:x:50:ann\n")
	add(tar.Header{Name: "home/ann/", Typeflag: tar.TypeDir, Mode: 0o755, Uid: 1000, Gid: 1000}, "")
	add(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, "")
	return archive.Bytes(), errors.Join(append(errs, w.Close())...)
}

// LayersImage returns a container image of layers, which are archives, and of the given configuration.
func LayersImage(config v1.Config, layers ...[]byte) (v1.Image, error) {
	image := empty.Image
	for _, archive := range layers {
		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
		if err == nil {
			image, err = mutate.AppendLayers(image, layer)
		}
		if err != nil {
			return nil, err
		}
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	return mutate.ConfigFile(image, &v1.ConfigFile{Architecture: "amd64", OS: "linux", Config: config, RootFS: file.RootFS})
}

// GuestKernel returns the folder of the kernel that boots container images.
func GuestKernel(t testing.TB) string {
	t.Helper()
	guest, err := BuildImageGuest()
	assert.NoError(t, err)
	return filepath.Dir(guest.Kernel)
}
