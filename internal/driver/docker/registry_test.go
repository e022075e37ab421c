// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// registry is an image registry that has one image, the guest, and can withhold its layer.
type registry struct {
	host, repo string
	layer      []byte
	released   chan struct{} // layers stop half way until it is closed

	mu      sync.Mutex
	layers  int // requests for the layer that have begun
	aborted int // those that the engine gave up
}

// newRegistry serves the image; if held, not before release is called. Each registry has a different
// layer, because an engine pulls no layer twice.
func newRegistry(t *testing.T, held bool) (r *registry, release func()) {
	t.Helper()
	random := make([]byte, 4<<20)
	_, _ = rand.Read(random) // it never fails
	filler, err := archiveOf(map[string][]byte{"filler": random})
	assert.NoError(t, err)
	r = &registry{repo: "guest-" + randomText(), layer: slices.Concat(filler, guestImages(t).rootfs), released: make(chan struct{})}
	layer := static.NewLayer(r.layer, types.OCIUncompressedLayer)
	image, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{Architecture: "amd64", OS: "linux", Config: v1.Config{Entrypoint: []string{"/demo-guest"}}})
	assert.NoError(t, err)
	image, err = mutate.AppendLayers(image, layer)
	assert.NoError(t, err)
	r.host = framework.NewRegistry(t, r.withhold)
	framework.PushImage(t, r.host+"/"+r.repo+":v1", image)
	release = sync.OnceFunc(func() { close(r.released) })
	t.Cleanup(release)
	if !held {
		release()
	}
	return r, release
}

// imageWithTag returns the reference of the image under a tag; only "v1" exists. It is removed
// at the end of the test, after the servers of all later calls of newSpec. It is not forced,
// because that would leave the image without its name if a server still uses it.
func (r *registry) imageWithTag(t *testing.T, tag string) string {
	t.Helper()
	image := r.host + "/" + r.repo + ":" + tag
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := guestImages(t).client.ImageRemove(ctx, image, client.ImageRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("image %s is left: %v", image, err)
		}
	})
	return image
}

// withhold serves the layer, and leaves all other requests to the registry.
func (r *registry) withhold(inner http.Handler) http.Handler {
	layer := fmt.Sprintf("/blobs/sha256:%x", sha256.Sum256(r.layer))
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet && strings.HasSuffix(req.URL.Path, layer) {
			r.serveLayer(w, req)
			return
		}
		inner.ServeHTTP(w, req)
	})
}

// progressPeriod makes parts of a layer come apart: the engine reports progress only now and then.
const progressPeriod = 20 * time.Millisecond

// serveLayer sends half, and the rest when the layer is released.
func (r *registry) serveLayer(w http.ResponseWriter, req *http.Request) {
	content := r.layer
	r.countLayer(&r.layers)
	w.Header().Set("Content-Length", fmt.Sprint(len(content)))
	half := len(content) / 2
	for i := 0; i < half; i += half / 8 {
		_, _ = w.Write(content[i:min(half, i+half/8)])
		w.(http.Flusher).Flush()
		time.Sleep(progressPeriod)
	}
	select {
	case <-r.released:
		_, _ = w.Write(content[half:])
	case <-req.Context().Done():
		r.countLayer(&r.aborted)
	}
}

func (r *registry) countLayer(n *int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	*n++
}

func (r *registry) layerCounts() (layers, cut int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.layers, r.aborted
}
