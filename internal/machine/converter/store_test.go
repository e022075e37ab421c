// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package converter

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/filetree"
)

// progress ignores how far a fetch is.
type progress struct{}

func (progress) ResetStallTimer() {}
func (progress) Report(string)    {}

// TestStore checks that a store of images fetches a container image by the process, and leaves nothing of one that is
// refused there.
func TestStore(t *testing.T) {
	t.Parallel()
	registry, dir := framework.NewRegistry(t, nil), t.TempDir()
	staging := filepath.Join(dir, "tmp")
	assert.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "cache"), 0o700), os.Mkdir(staging, 0o700)))
	sources, err := image.NewSources(image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: []string{registry}})
	assert.NoError(t, err)
	s := &image.Store{
		Dir: dir, Sub: "cache", Clock: clock.RealClock{}, Stage: atomicfile.Folder{Path: staging}.MakeFolder,
		Sources: sources, Convert: newConverter(t, machineProgram, ownUser()).Convert,
	}
	push := func(name, file string) image.Ref {
		made, err := mutate.AppendLayers(empty.Image, static.NewLayer(framework.TarOf(t, file, []byte("program")), mediatypes.OCIUncompressedLayer))
		assert.NoError(t, err)
		made, err = mutate.Config(made, v1.Config{Entrypoint: []string{"/app"}})
		assert.NoError(t, err)
		ref := image.Ref{Source: registry + "/" + name + ":1"}
		framework.PushImage(t, ref.Source, made)
		return ref
	}
	app := push("app", "app")
	assert.NoError(t, s.Fetch(t.Context(), app, progress{}))
	root, err := s.OpenRoot(app)
	assert.NoError(t, err)
	defer func() { _ = root.Close() }()
	if tree := filetree.Read(t, root.File); len(tree) != 2 || root.Config.Entrypoint[0] != "/app" {
		t.Errorf("the root has %v and %+v", tree, root.Config)
	}
	assert.ErrorIs(t, "Fetch", s.Fetch(t.Context(), push("odd", "a/.wh."), progress{}), image.ErrUnavailable, "no machine can have it as its root")
	left, err := os.ReadDir(staging)
	assert.NoError(t, err)
	if images, err := s.List(); err != nil || len(images) != 1 || len(left) != 0 {
		t.Errorf("the store has %v, %v, and %v is left behind", images, err, left)
	}
}
