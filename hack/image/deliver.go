// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// containerdName is the annotation by which containerd and Docker name what they import.
const containerdName = "io.containerd.image.name"

// writeArchive writes an OCI archive of all images, which docker load, podman load and ctr images import take:
// an OCI layout, and the file that Docker before 25 reads in its place.
func writeArchive(path string, tag name.Tag, images map[string]v1.Image, index v1.ImageIndex) error {
	folder, err := os.MkdirTemp(filepath.Dir(path), ".layout")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	oci, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	fullName := strings.Replace(tag.Name(), name.DefaultRegistry, "docker.io", 1)
	if err := oci.AppendIndex(index, layout.WithAnnotations(map[string]string{containerdName: fullName})); err != nil {
		return err
	}
	files, err := readFolder(folder)
	if err != nil {
		return err
	}
	manifest, err := dockerManifest(tag, images)
	if err != nil {
		return err
	}
	content, err := packFiles(append(files, file{name: "manifest.json", mode: 0o644, content: manifest}))
	if err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s  %s  %s\n", path, tag, digest)
	return os.WriteFile(path, content, 0o644)
}

// dockerManifest describes one of the images as Docker before version 25 expects: the one for amd64 if there is one.
func dockerManifest(tag name.Tag, images map[string]v1.Image) ([]byte, error) {
	image, ok := images["linux/amd64"]
	if !ok {
		image = images[slices.Sorted(maps.Keys(images))[0]]
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, err
	}
	var layers []string
	for _, layer := range manifest.Layers {
		layers = append(layers, blobPath(layer.Digest))
	}
	return json.Marshal([]map[string]any{{
		"Config": blobPath(manifest.Config.Digest), "RepoTags": []string{tag.String()}, "Layers": layers,
	}})
}

// blobPath is the path of a blob in an OCI layout.
func blobPath(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }

func pushImages(ctx context.Context, tag name.Tag, index v1.ImageIndex) error {
	err := remote.WriteIndex(tag, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return fmt.Errorf("push %s: %w", tag, err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", tag.Context(), digest)
	return nil
}
