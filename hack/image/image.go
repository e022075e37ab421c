// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"maps"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

const (
	// program is the path of the only file in the image. Kubeconfigs and
	// certificates of engines define which servers the controller trusts.
	program = "/drover-controller"
	// user is an unprivileged user, as a number so that a kubelet can see that it is
	// not root.
	user = "65532:65532"
)

// newImage makes an image of one program.
func newImage(binary []byte, p *v1.Platform, version string) (v1.Image, error) {
	layer, err := newLayer(binary)
	if err != nil {
		return nil, err
	}
	base := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, History: v1.History{CreatedBy: "hack/image"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = p.OS, p.Architecture, p.Variant
	config.Config.User = user
	config.Config.Entrypoint = []string{program}
	config.Config.Labels = map[string]string{
		"org.opencontainers.image.title":    "drover-controller",
		"org.opencontainers.image.version":  version,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	return mutate.ConfigFile(image, config)
}

// newLayer returns a layer without times, users or modes of the build machine.
func newLayer(binary []byte) (v1.Layer, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	header := &tar.Header{Typeflag: tar.TypeReg, Name: program[1:], Mode: 0o755, Size: int64(len(binary)), Format: tar.FormatUSTAR}
	if err := w.WriteHeader(header); err != nil {
		return nil, err
	}
	if _, err := w.Write(binary); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer))
}

// newIndex lists the images by platform, in one order.
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
