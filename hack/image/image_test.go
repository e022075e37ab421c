// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const (
	amd64 = "linux/amd64"
	arm64 = "linux/arm64"
)

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func imageFor(t *testing.T, platform, binary string) v1.Image {
	t.Helper()
	p, err := v1.ParsePlatform(platform)
	noError(t, err)
	image, err := newImage(content{program: controller, version: "v1", binary: []byte(binary)}, p)
	noError(t, err)
	return image
}

func TestImageHoldsOnlyTheProgram(t *testing.T) {
	image := imageFor(t, amd64, "program")
	files := mutate.Extract(image)
	defer func() { _ = files.Close() }()
	r := tar.NewReader(files)
	header, err := r.Next()
	noError(t, err)
	content, err := io.ReadAll(r)
	if err != nil || string(content) != "program" || header.Name != "drover-controller" || header.Mode != 0o755 || header.Uid != 0 {
		t.Errorf("%q is %q, mode %o, of %d; error %v", header.Name, content, header.Mode, header.Uid, err)
	}
	if _, err := r.Next(); err != io.EOF {
		t.Errorf("there is more in it: error %v", err)
	}
}

// TestImageOfFolder checks that further files come first, and keep what is theirs alone.
func TestImageOfFolder(t *testing.T) {
	root := t.TempDir()
	for name, mode := range map[string]os.FileMode{"usr/bin/qemu": 0o700, "lib/file": 0o600} {
		path := filepath.Join(root, name)
		noError(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(name), mode)))
	}
	c := content{program: "drover-machine", binary: []byte("program"), root: root, packages: "a=1 b=2"}
	image, err := newImage(c, &v1.Platform{OS: "linux", Architecture: "amd64"})
	noError(t, err)
	layers, err := image.Layers()
	if err != nil || len(layers) != 2 {
		t.Fatalf("layers are %v, %v", layers, err)
	}
	config, err := image.ConfigFile()
	if err != nil || config.Config.Labels[packagesLabel] != "a=1 b=2" || config.Config.Entrypoint[0] != "/drover-machine" {
		t.Errorf("config is %+v, %v", config, err)
	}
	modes := map[string]int64{}
	files := mutate.Extract(image)
	defer func() { _ = files.Close() }()
	r := tar.NewReader(files)
	for header, err := r.Next(); err != io.EOF; header, err = r.Next() {
		noError(t, err)
		modes[header.Name] = header.Mode
	}
	if want := map[string]int64{"usr/bin/qemu": 0o755, "lib/file": 0o644, "drover-machine": 0o755}; !reflect.DeepEqual(modes, want) {
		t.Errorf("files are %v, want %v", modes, want)
	}
	noError(t, os.Symlink("qemu", filepath.Join(root, "link")))
	if _, err := newImage(c, &v1.Platform{}); err == nil || !strings.Contains(err.Error(), "link is not a regular file") {
		t.Errorf("with a link, the error is %v", err)
	}
}

func TestImageUserIsUnprivileged(t *testing.T) {
	config, err := imageFor(t, amd64, "program").ConfigFile()
	noError(t, err)
	c := config.Config
	if c.User != "65532:65532" || !reflect.DeepEqual(c.Entrypoint, []string{"/drover-controller"}) || len(c.Cmd) != 0 {
		t.Errorf("user %q, entrypoint %q, command %q", c.User, c.Entrypoint, c.Cmd)
	}
	if got := config.Platform().String(); got != amd64 {
		t.Errorf("platform is %s, want %s", got, amd64)
	}
	if c.Labels["org.opencontainers.image.version"] != "v1" {
		t.Errorf("labels are %v", c.Labels)
	}
}

func TestImageIsReproducible(t *testing.T) {
	a, err := imageFor(t, amd64, "program").Digest()
	noError(t, err)
	b, err := imageFor(t, amd64, "program").Digest()
	if err != nil || a != b {
		t.Errorf("first %s, then %s; error %v", a, b, err)
	}
	other, err := imageFor(t, amd64, "another program").Digest()
	if err != nil || a == other {
		t.Errorf("another program gives %s too; error %v", a, err)
	}
}

// TestDelivery checks that the written images and those that a registry got are the
// same.
func TestDelivery(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	tag, err := name.NewTag(strings.TrimPrefix(server.URL, "http://") + "/drover-controller:v1")
	noError(t, err)
	images := map[string]v1.Image{amd64: imageFor(t, amd64, "this"), arm64: imageFor(t, arm64, "that")}
	index, err := newIndex(images)
	noError(t, err)
	out := t.TempDir()
	archive := filepath.Join(out, "archive.tar")
	noError(t, writeArchive(archive, tag, images, index))
	noError(t, pushImages(t.Context(), tag, index))
	want := digestOf(t, index)

	pushed, err := remote.Index(tag)
	noError(t, err)
	if err := validate.Index(pushed); err != nil || digestOf(t, pushed) != want {
		t.Errorf("the registry has %s, want %s; error %v", digestOf(t, pushed), want, err)
	}
	unpacked := t.TempDir()
	execute(t, "tar", "--extract", "--file", archive, "--directory", unpacked)
	written, err := layout.ImageIndexFromPath(unpacked)
	noError(t, err)
	manifest, err := written.IndexManifest()
	noError(t, err)
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest != want || manifest.Manifests[0].Annotations[containerdName] != tag.Name() {
		t.Errorf("the archive has %+v, want %s by the name %s", manifest.Manifests, want, tag.Name())
	}
	loaded, err := tarball.ImageFromPath(archive, &tag)
	noError(t, err)
	if got, want := configOf(t, loaded), configOf(t, images[amd64]); got != want {
		t.Errorf("Docker before 25 loads %s, want %s", got, want)
	}
}

func execute(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out)
	}
}

func configOf(t *testing.T, image v1.Image) v1.Hash {
	t.Helper()
	hash, err := image.ConfigName()
	noError(t, err)
	return hash
}

func digestOf(t *testing.T, index v1.ImageIndex) v1.Hash {
	t.Helper()
	digest, err := index.Digest()
	noError(t, err)
	return digest
}

func TestRunErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		o    options
		want string
	}{
		"tag":      {options{tag: "Not A Tag"}, "Not A Tag"},
		"platform": {options{tag: "x", platforms: "a/b/c/d"}, "a/b/c/d"},
		"source":   {options{tag: "x", platforms: amd64, program: controller, source: t.TempDir()}, "exit status 1"},
	} {
		t.Run(name, func(t *testing.T) {
			tc.o.out = t.TempDir()
			err := run(t.Context(), tc.o)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error is %v, want %q in it", err, tc.want)
			}
			if left, _ := os.ReadDir(tc.o.out); len(left) != 0 {
				t.Errorf("it left %v", left)
			}
		})
	}
}
