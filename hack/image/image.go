// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// user is an unprivileged user, as a number so that a kubelet can see that it is not
// root.
const user = "65532:65532"

// packagesLabel lists the Debian packages whose files are in the image, with versions.
const packagesLabel = "cloudnative.tw/debian-packages"

// content is the content of an image. In the image of drover-controller the program is the only file, without
// a CA bundle: kubeconfigs and the certificates of engines define which servers it trusts.
type content struct {
	program, version string
	binary           []byte
	// root is a folder with further files, and packages lists the Debian packages that they
	// come from. Both may be empty.
	root, packages string
	// notices is the text of the file NOTICES, with the licences of the modules in the program. It may be empty.
	notices []byte
}

// newImage makes an image of one program, on top of the other files if it has any.
func newImage(c content, p *v1.Platform) (v1.Image, error) {
	image := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	var folders [][]file
	if c.root != "" {
		files, err := readFolder(c.root)
		if err != nil {
			return nil, err
		}
		folders = append(folders, files)
	}
	own := []file{{name: c.program, mode: 0o755, content: c.binary}}
	if c.notices != nil {
		own = append(own, file{name: "NOTICES", mode: 0o644, content: c.notices})
	}
	for _, files := range append(folders, own) {
		layer, err := newLayer(files)
		if err != nil {
			return nil, err
		}
		if image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "hack/image"}}); err != nil {
			return nil, err
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Config.User = user
	config.Config.Entrypoint = []string{"/" + c.program}
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    c.program,
		"org.opencontainers.image.version":  c.version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	if c.packages != "" {
		config.Config.Labels[packagesLabel] = c.packages
		delete(config.Config.Labels, "org.opencontainers.image.licenses") // each package has a separate one
	}
	return mutate.ConfigFile(image, config)
}

// file is a file of a layer.
type file struct {
	name    string
	mode    int64
	content []byte
}

// readFolder returns the files below a folder, sorted by name. Of their modes it keeps only
// whether they are executable.
func readFolder(root string) ([]file, error) {
	var files []file
	err := fs.WalkDir(os.DirFS(root), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is not a regular file", filepath.Join(root, name))
		}
		content, err := os.ReadFile(filepath.Join(root, name))
		mode := int64(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}
		files = append(files, file{name, mode, content})
		return err
	})
	return files, err
}

// newLayer returns a layer of files.
func newLayer(files []file) (v1.Layer, error) {
	content, err := packFiles(files)
	if err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// packFiles returns an archive without times, users or modes of the build machine. Folders are made when it is unpacked.
func packFiles(files []file) ([]byte, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Format: tar.FormatUSTAR}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return content.Bytes(), nil
}

// newIndex lists the images sorted by platform.
func newIndex(images map[string]v1.Image) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, platform := range slices.Sorted(maps.Keys(images)) {
		p, err := v1.ParsePlatform(platform)
		if err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: images[platform], Descriptor: v1.Descriptor{Platform: p},
		})
	}
	return index, nil
}
