// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/test/assert"
)

const (
	manifestType = "application/vnd.docker.distribution.manifest.v2+json"
	configType   = "application/vnd.docker.container.image.v1+json"
	layerType    = "application/vnd.docker.image.rootfs.diff.tar"
)

// registry is an image registry with only what a pull needs. It has one image,
// the guest, and can withhold its layer.
type registry struct {
	server   *httptest.Server
	repo     string
	blobs    map[string][]byte
	released chan struct{} // layers stop half way until it is closed

	mu      sync.Mutex
	layers  int // requests for the layer that have begun
	aborted int // those that the engine gave up
}

// newRegistry serves the image; if held, not before release is called.
func newRegistry(t *testing.T, held bool) (r *registry, release func()) {
	t.Helper()
	r = &registry{repo: "guest-" + randomText(), blobs: map[string][]byte{}, released: make(chan struct{})}
	release = sync.OnceFunc(func() { close(r.released) })
	if !held {
		release()
	}
	r.addImage(t, guestImages(t).rootfs)
	r.server = httptest.NewServer(r)
	t.Cleanup(func() {
		release()
		r.server.CloseClientConnections()
		r.server.Close()
	})
	return r, release
}

// imageWithTag returns the reference of the image under a tag; only "v1" exists. It is removed
// at the end of the test, after the servers of all later calls of newSpec. It is not forced,
// because that would leave the image without its name if a server still uses it.
func (r *registry) imageWithTag(t *testing.T, tag string) string {
	t.Helper()
	image := strings.TrimPrefix(r.server.URL, "http://") + "/" + r.repo + ":" + tag
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_, err := guestImages(t).client.ImageRemove(ctx, image, client.ImageRemoveOptions{})
		if err != nil && !errdefs.IsNotFound(err) {
			t.Errorf("image %s is left: %v", image, err)
		}
	})
	return image
}

// addImage gives each registry a different layer, because an engine pulls no
// layer twice.
func (r *registry) addImage(t *testing.T, rootfs []byte) {
	t.Helper()
	filler, err := archiveOf(map[string][]byte{"filler": randomBytes(t, 4<<20)})
	assert.NoError(t, err)
	layer := slices.Concat(filler, rootfs)
	config, err := json.Marshal(map[string]any{
		"architecture": "amd64", "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/demo-guest"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{contentDigest(layer)}},
	})
	assert.NoError(t, err)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": manifestType,
		"config": r.addBlob(configType, config),
		"layers": []any{r.addBlob(layerType, layer)},
	})
	assert.NoError(t, err)
	r.blobs["v1"], r.blobs[contentDigest(manifest)] = manifest, manifest
}

func (r *registry) addBlob(mediaType string, content []byte) map[string]any {
	r.blobs[contentDigest(content)] = content
	return map[string]any{"mediaType": mediaType, "size": len(content), "digest": contentDigest(content)}
}

func contentDigest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func randomBytes(t *testing.T, size int) []byte {
	t.Helper()
	b := make([]byte, size)
	_, err := rand.Read(b)
	assert.NoError(t, err)
	return b
}

func (r *registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := strings.TrimPrefix(req.URL.Path, "/v2/"+r.repo+"/")
	kind, key, _ := strings.Cut(path, "/")
	content, found := r.blobs[key]
	switch {
	case req.URL.Path == "/v2/":
	case !found:
		http.Error(w, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}`, http.StatusNotFound)
	case kind == "manifests":
		w.Header().Set("Content-Type", manifestType)
		w.Header().Set("Docker-Content-Digest", contentDigest(content))
		_, _ = w.Write(content)
	case len(content) < 1<<20:
		_, _ = w.Write(content)
	default:
		r.serveLayer(w, req, content)
	}
}

// progressPeriod makes parts of a layer come apart: the engine reports progress only now and then.
const progressPeriod = 20 * time.Millisecond

// serveLayer sends half, and the rest when the layer is released.
func (r *registry) serveLayer(w http.ResponseWriter, req *http.Request, content []byte) {
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
