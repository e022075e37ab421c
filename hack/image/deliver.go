// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// writeImages leaves an OCI layout of all images, and for each a file that docker
// load, podman load and ctr images import take.
func writeImages(out, program string, tag name.Tag, images map[string]v1.Image, index v1.ImageIndex) error {
	oci := filepath.Join(out, layoutFolder(program))
	if err := os.RemoveAll(oci); err != nil {
		return err
	}
	if _, err := layout.Write(oci, index); err != nil {
		return err
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Printf("%s  %s\n", oci, digest)
	for _, platform := range slices.Sorted(maps.Keys(images)) {
		path := filepath.Join(out, program+"-"+fileName(platform)+".tar")
		if err := tarball.WriteToFile(path, tag, images[platform]); err != nil {
			return err
		}
		fmt.Printf("%s  %s\n", path, tag)
	}
	return nil
}

// layoutFolder is the name of the OCI layout of a program's image.
func layoutFolder(program string) string {
	if program == controller {
		return "oci"
	}
	return "oci-" + program
}

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
