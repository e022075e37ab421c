// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// writeProbeImage writes an archive with ProbeImage, which also has the program that runs first
// in every pod.
func writeProbeImage(p plan.Plan) error {
	files := map[string]string{"pause": p.Program("pause"), "probe": p.Program("probe")}
	return WriteImage(p.Path("probe.tar"), plan.ProbeImage, files, "/pause")
}

// WriteImage writes an archive with an image of programs: it maps names in the image's root to
// files of this host. Containers of it run as a user who is not root.
func WriteImage(archive, tag string, programs map[string]string, entrypoint ...string) error {
	reference, err := name.NewTag(tag)
	if err != nil {
		return err
	}
	layer, err := newLayer(programs)
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.User, config.Config.Entrypoint = "65532:65532", entrypoint
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	return tarball.WriteToFile(archive, reference, image)
}

func newLayer(programs map[string]string) (v1.Layer, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for name, path := range programs {
		program, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(program))}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(program); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil })
}
