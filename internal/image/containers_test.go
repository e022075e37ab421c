// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/filetree"
)

// containerConfig is the configuration of the tests' images.
var containerConfig = v1.Config{
	Entrypoint: []string{"/bin/app"}, Cmd: []string{"--serve"}, Env: []string{"PATH=/bin", "EMPTY="}, WorkingDir: "/srv", User: "1000:1000",
	StopSignal: "SIGINT", ExposedPorts: map[string]struct{}{"80/tcp": {}, "443/tcp": {}}, Volumes: map[string]struct{}{"/data": {}},
	Shell: []string{"/bin/ash", "-c"}, Healthcheck: &v1.HealthConfig{Test: []string{"CMD-SHELL", "true"}},
}

// containerImage returns an image for a platform.
func containerImage(t testing.TB, architecture string, config v1.Config, layers ...v1.Layer) v1.Image {
	t.Helper()
	i, err := mutate.AppendLayers(empty.Image, layers...)
	assert.NoError(t, err)
	i, err = mutate.ConfigFile(i, withConfig(t, i, architecture, config))
	assert.NoError(t, err)
	return i
}

func withConfig(t testing.TB, i v1.Image, architecture string, config v1.Config) *v1.ConfigFile {
	t.Helper()
	file, err := i.ConfigFile()
	assert.NoError(t, err)
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", architecture, config
	return file
}

// appLayers returns the layers of an image of one program.
func appLayers(t testing.TB, content string) []v1.Layer {
	t.Helper()
	return []v1.Layer{plain(framework.TarOf(t, "bin/app", []byte(content))), plain(framework.TarOf(t, "etc/app.conf", []byte("lower"))), plain(framework.TarOf(t, "etc/app.conf", []byte("upper")))}
}

// counted counts the blobs that a registry is asked for.
func counted(count *atomic.Int32) func(http.Handler) http.Handler {
	return blobs(func(w http.ResponseWriter, _ *http.Request, blob []byte) {
		count.Add(1)
		_, _ = w.Write(blob)
	})
}

// containerStore returns a store that takes container images of the tests' registries.
func containerStore(t *testing.T, registry string) *image.Store {
	t.Helper()
	s := newStore(t, registry)
	s.Convert = rootfs.ConvertHere
	return s
}

// digestOf returns the digest of an image.
func digestOf(t testing.TB, i interface{ Digest() (v1.Hash, error) }) string {
	t.Helper()
	digest, err := i.Digest()
	assert.NoError(t, err)
	return digest.String()
}

func openRoot(t *testing.T, s *image.Store, ref image.Ref) *image.Root {
	t.Helper()
	root, err := s.OpenRoot(ref)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = root.Close() })
	return root
}

// TestContainer checks that a container image becomes a root with its configuration, and that
// other names of it copy nothing.
func TestContainer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	registry := framework.NewRegistry(t, counted(&asked))
	i := containerImage(t, "amd64", containerConfig, appLayers(t, "program")...)
	digest := digestOf(t, i)
	framework.PushImage(t, registry+"/library/app:1", i)
	framework.PushImage(t, registry+"/library/app:2", i)
	s := containerStore(t, registry)
	var layers int32
	for k, source := range []string{registry + "/library/app:1", registry + "/library/app:2", registry + "/library/app@" + digest} {
		ref := image.ParseRef(source, "")
		assert.ErrorIs(t, "OpenRoot", assert.ErrorOf(s.OpenRoot(ref)), image.ErrUnavailable, "has to be fetched first")
		assert.NoError(t, fetch(t, s, ref))
		root := openRoot(t, s, ref)
		assert.True(t, root.Digest == digest && root.Name == "root-"+strings.Replace(digest, ":", "-", 1) && s.Digest(ref) == digest,
			"%s: got %+v, want %s", source, root, digest)
		if k == 0 {
			layers = asked.Load()
			checkRoot(t, root)
			if base, err := s.Describe(ref); err != nil || base.Ref != ref || base.Path != root.Name || base.Format != "erofs" || base.Size != root.Size || !base.HasContentOf(base) {
				t.Errorf("it is described as %+v, %v", base, err)
			}
		}
		if got, configs := asked.Load(), int32(k); got != layers+configs { // whose configuration is read each time
			t.Errorf("%s: the registry was asked for %d blobs, %d at first", source, got, layers)
		}
		needed, err := s.NeedsFetch(ref, image.PullAlways)
		assert.True(t, err == nil && needed != strings.Contains(source, "@"), "%s: it has to be fetched again: %v, %v", source, needed, err)
	}
	checkImages(t, s, 1)
}

// checkRoot checks the root of appLayers.
func checkRoot(t *testing.T, root *image.Root) {
	t.Helper()
	want := image.RunConfig{
		Entrypoint: []string{"/bin/app"}, Cmd: []string{"--serve"}, Env: []string{"PATH=/bin", "EMPTY="}, WorkingDir: "/srv", User: "1000:1000",
		StopSignal: "SIGINT", ExposedPorts: []string{"443/tcp", "80/tcp"}, Volumes: []string{"/data"},
		HealthCheck: &health.Check{Args: []string{"/bin/ash", "-c", "true"}, Interval: 30 * time.Second, Timeout: 30 * time.Second, StartInterval: 5 * time.Second, Retries: 3},
	}
	assert.True(t, reflect.DeepEqual(root.Config, want), "the configuration is %+v", root.Config)
	tree := filetree.Read(t, root.File)
	upper, err := filetree.HashOf(strings.NewReader("upper"))
	assert.NoError(t, err)
	assert.True(t, len(tree) == 5 && tree["etc/app.conf"].Hash == upper, "the root has %v", tree)
	info, err := root.File.Stat()
	assert.NoError(t, err)
	assert.True(t, info.Mode().Perm() == 0o400 && info.Size() == root.Size && root.Size%4096 == 0,
		"the file has the mode %v and %d bytes, of %d", info.Mode(), info.Size(), root.Size)
}

// TestPlatform checks that the image for machines is chosen, and that others are refused before
// any layer of theirs is fetched.
func TestPlatform(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	registry := framework.NewRegistry(t, counted(&asked))
	arm := containerImage(t, "arm64", containerConfig, appLayers(t, "arm")...)
	amd := containerImage(t, "amd64", containerConfig, appLayers(t, "amd")...)
	indexOf := func(images map[string]v1.Image) v1.ImageIndex {
		index := v1.ImageIndex(empty.Index)
		for architecture, i := range images {
			index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: i, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
		}
		return index
	}
	push := func(tag string, what remote.Taggable) image.Ref {
		ref, err := name.ParseReference(registry + "/app:" + tag)
		assert.NoError(t, err)
		switch what := what.(type) {
		case v1.ImageIndex:
			assert.NoError(t, remote.WriteIndex(ref, what))
		case v1.Image:
			assert.NoError(t, remote.Write(ref, what))
		}
		return image.ParseRef(ref.Name(), "")
	}
	s := containerStore(t, registry)
	both := push("both", indexOf(map[string]v1.Image{"arm64": arm, "amd64": amd}))
	assert.NoError(t, fetch(t, s, both))
	root := openRoot(t, s, both)
	assert.True(t, root.Digest == digestOf(t, amd), "got %s", root.Digest)
	asked.Store(0)
	wantRetry(t, fetch(t, s, push("arm", arm)), `the image is for "linux/arm64", and machines run linux/amd64`)
	wantRetry(t, fetch(t, s, push("arm-index", indexOf(map[string]v1.Image{"arm64": arm}))), "no image for linux/amd64")
	if n := asked.Load(); n > 1 { // a configuration
		t.Errorf("%d blobs were fetched", n)
	}
	assert.NoError(t, fetch(t, s, push("unnamed", containerImage(t, "", v1.Config{}, appLayers(t, "any")...))))
	checkImages(t, s, 2)
}

// TestContainerOfDisk checks that a container disk is stored as such, by whichever name.
func TestContainerOfDisk(t *testing.T) {
	t.Parallel()
	content := disk()
	source := push(t, nil, zipped(t, framework.TarOf(t, "disk/a.img", content)))
	s := containerStore(t, hostOf(source))
	ref := image.ParseRef(strings.TrimPrefix(source, "oci://"), "")
	assert.NoError(t, fetch(t, s, ref))
	assert.ErrorIs(t, "OpenRoot", assert.ErrorOf(s.OpenRoot(ref)), image.ErrNotRoot)
	path, exists := s.Path(ref)
	have, err := os.ReadFile(path)
	assert.NoError(t, err)
	assert.True(t, exists && bytes.Equal(have, content) && s.Digest(ref) == checksum(content), "%s has %d bytes, want the disk", path, len(have))
	base, err := s.Describe(ref)
	assert.NoError(t, err)
	assert.True(t, base.Path == filepath.Base(path) && base.Stamp == fmt.Sprint(len(content)), "the disk is described as %+v", base)
	assert.NoError(t, fetch(t, s, image.ParseRef(source, "")))
	checkImages(t, s, 1)
	// A disk by its checksum, as of a machine that was made of it.
	pinned := containerStore(t, hostOf(source))
	assert.NoError(t, fetch(t, pinned, image.ParseRef(ref.Source.Text(), checksum(content))))
	checkImages(t, pinned, 1)
	wantRetry(t, fetch(t, pinned, image.ParseRef(ref.Source.Text(), checksum([]byte("another")))), "its checksum is "+checksum(content))
}

// TestPinnedContainer checks that an image is fetched by its digest once its tag stands for
// another, and that its source stands for the new one all the same.
func TestPinnedContainer(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	source := registry + "/app:latest"
	old, latest := containerImage(t, "amd64", containerConfig, appLayers(t, "old")...), containerImage(t, "amd64", containerConfig, appLayers(t, "new")...)
	framework.PushImage(t, source, old)
	framework.PushImage(t, source, latest)
	s := containerStore(t, registry)
	pinned := image.ParseRef(source, digestOf(t, old))
	assert.NoError(t, fetch(t, s, pinned))
	root := openRoot(t, s, pinned)
	assert.True(t, root.Digest == pinned.Checksum, "got %s", root.Digest)
	assert.NoError(t, fetch(t, s, image.ParseRef(source, "")))
	assert.Equal(t, "the source stands for", openRoot(t, s, image.ParseRef(source, "")).Digest, digestOf(t, latest))
	missing := image.ParseRef(source, checksum([]byte("missing")))
	wantRetry(t, fetch(t, s, missing), "the digest of the image is "+digestOf(t, latest))
	checkImages(t, s, 2)
}

// TestContainerRegistryFails checks the faults of a registry: content that was not asked for is not
// taken, and is asked for again.
func TestContainerRegistryFails(t *testing.T) {
	t.Parallel()
	layer := framework.TarOf(t, "bin/app", bytes.Repeat([]byte("program "), 10000))
	odd := framework.TarOf(t, ".wh.", nil)
	for name, c := range map[string]struct {
		layer  []byte
		answer func(w http.ResponseWriter, r *http.Request, blob []byte)
		says   string
		again  bool
	}{
		"changed content": {layer, func(w http.ResponseWriter, _ *http.Request, blob []byte) {
			_, _ = w.Write(bytes.Replace(blob, []byte("program"), []byte("malware"), 1))
		}, "digest", true},
		"changed to be odd": {layer, func(w http.ResponseWriter, _ *http.Request, blob []byte) {
			_, _ = w.Write(bytes.Replace(blob, []byte("bin/app"), []byte("b/.wh.."), 1))
		}, "digest", true},
		"cut off":              {layer, func(w http.ResponseWriter, _ *http.Request, blob []byte) { _, _ = w.Write(blob[:min(1000, len(blob))]) }, "", true},
		"gone":                 {layer, func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(http.StatusNotFound) }, "404", true},
		"odd, as it is":        {odd, func(w http.ResponseWriter, _ *http.Request, blob []byte) { _, _ = w.Write(blob) }, "the image cannot be the root of a machine", false},
		"no archive, as it is": {bytes.Repeat([]byte("x"), 5000), func(w http.ResponseWriter, _ *http.Request, blob []byte) { _, _ = w.Write(blob) }, "the image cannot be the root of a machine", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			registry := framework.NewRegistry(t, blobs(func(w http.ResponseWriter, r *http.Request, blob []byte) {
				if bytes.HasPrefix(blob, []byte("{")) {
					_, _ = w.Write(blob)
					return
				}
				asked.Add(1)
				c.answer(w, r, blob)
			}))
			framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, plain(c.layer)))
			s := containerStore(t, registry)
			for range 2 {
				wantRetry(t, fetch(t, s, image.ParseRef(registry+"/app:1", "")), c.says)
			}
			assert.Equal(t, "it was asked again", asked.Load() > 1, c.again)
			checkImages(t, s, 0)
		})
	}
}

// withManifest makes a registry answer another manifest than it has.
func withManifest(change func(manifest string) string) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/manifests/") {
				inner.ServeHTTP(w, r)
				return
			}
			recorded := httptest.NewRecorder()
			inner.ServeHTTP(recorded, r)
			w.Header().Set("Content-Type", recorded.Header().Get("Content-Type"))
			_, _ = io.WriteString(w, change(recorded.Body.String()))
		})
	}
}

// statedSizes makes a registry state other sizes of an image's configuration and layers, as far as change sets
// them, and answer every request for a blob with much more. It counts these requests.
func statedSizes(asked *atomic.Int32, change func(*v1.Manifest)) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return withManifest(func(text string) string {
			manifest, err := v1.ParseManifest(strings.NewReader(text))
			if err != nil {
				return text
			}
			change(manifest)
			changed, _ := json.Marshal(manifest)
			return string(changed)
		})(blobs(func(w http.ResponseWriter, _ *http.Request, _ []byte) {
			asked.Add(1)
			for range 32 { // MiB, without a length
				_, _ = w.Write(make([]byte, 1<<20))
			}
		})(inner))
	}
}

// TestStatedSizes checks that an image whose manifest states sizes that cannot be is refused before any
// blob is read, as a container image and as a disk.
func TestStatedSizes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*v1.Manifest)
		says   string
	}{
		"negative configuration": {func(m *v1.Manifest) { m.Config.Size = -1 }, "the configuration of the image has -1 bytes: it may have 0 to 1048576"},
		"large configuration":    {func(m *v1.Manifest) { m.Config.Size = 1 << 30 }, "the configuration of the image has 1073741824 bytes: it may have 0 to 1048576"},
		"negative layer":         {func(m *v1.Manifest) { m.Layers[0].Size = -1 }, "a layer of the image has -1 bytes: it must have 1 or more"},
		"empty layer": {func(m *v1.Manifest) {
			m.Layers = append(m.Layers, v1.Descriptor{MediaType: m.Layers[0].MediaType, Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}})
		}, "a layer of the image has 0 bytes: it must have 1 or more"},
		"least layer": {func(m *v1.Manifest) { m.Layers[0].Size = math.MinInt64 }, "it must have 1 or more"},
		"huge layer":  {func(m *v1.Manifest) { m.Layers[0].Size = math.MaxInt64 }, "--image-max-size"},
		"sum that overflows": {func(m *v1.Manifest) {
			m.Layers[0].Size, m.Layers = 1<<30, append(m.Layers, v1.Descriptor{Size: math.MaxInt64, Digest: v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("0", 64)}})
		}, "--image-max-size"},
		"two sizes of a layer": {func(m *v1.Manifest) {
			m.Layers = append(m.Layers, m.Layers[0])
			m.Layers[1].Size++
		}, "states the sizes"},
		"a layer that is the configuration": {func(m *v1.Manifest) { m.Layers[0].Digest = m.Config.Digest }, "states the sizes"},
	} {
		for _, scheme := range []string{"", "oci://"} {
			t.Run(name+" "+scheme, func(t *testing.T) {
				t.Parallel()
				var asked atomic.Int32
				registry := framework.NewRegistry(t, statedSizes(&asked, c.change))
				framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, plain(framework.TarOf(t, "disk/a", bytes.Repeat([]byte("program "), 1000)))))
				s := containerStore(t, registry)
				assert.ErrorSays(t, "Fetch", fetch(t, s, image.ParseRef(scheme+registry+"/app:1", "")), c.says)
				n := asked.Load()
				assert.True(t, n == 0, "the registry was asked for %d blobs", n)
				checkImages(t, s, 0)
			})
		}
	}
}

// TestContainerSizes checks that the sizes of layers in a manifest are not believed.
func TestContainerSizes(t *testing.T) {
	t.Parallel()
	layer := plain(framework.TarOf(t, "bin/app", bytes.Repeat([]byte("program "), 1000)))
	size, err := layer.Size()
	assert.NoError(t, err)
	for name, c := range map[string]struct {
		size int64
		says string
	}{
		"smaller": {size - 512, "the size of the content differs from the size that the image states"},
		"larger":  {size + 512, "the size of the content differs from the size that the image states"},
		"nothing": {0, "it must have 1 or more"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			registry := framework.NewRegistry(t, withManifest(func(manifest string) string {
				return strings.Replace(manifest, fmt.Sprintf(`"size":%d`, size), fmt.Sprintf(`"size":%d`, c.size), 1)
			}))
			framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, layer))
			s := containerStore(t, registry)
			assert.ErrorSays(t, "Fetch", fetch(t, s, image.ParseRef(registry+"/app:1", "")), c.says)
			checkImages(t, s, 0)
		})
	}
}

// TestEndlessBlob checks that nothing is read of a layer beyond its size, and that this has to be the layer.
func TestEndlessBlob(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, blobs(func(w http.ResponseWriter, _ *http.Request, blob []byte) {
		for err := error(nil); err == nil; _, err = w.Write(blob) {
			w.(http.Flusher).Flush() // so that it lacks a length
		}
	}))
	ref := image.ParseRef(registry+"/app:1", "")
	framework.PushImage(t, ref.Source.Name, containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	s := containerStore(t, registry)
	assert.NoError(t, fetch(t, s, ref))
	checkRoot(t, openRoot(t, s, ref))
}

// TestOtherManifest checks that a registry cannot give another image for a digest.
func TestOtherManifest(t *testing.T) {
	t.Parallel()
	wanted := containerImage(t, "amd64", containerConfig, appLayers(t, "wanted")...)
	other, err := containerImage(t, "amd64", containerConfig, appLayers(t, "other")...).RawManifest()
	assert.NoError(t, err)
	registry := framework.NewRegistry(t, withManifest(func(string) string { return string(other) }))
	framework.PushImage(t, registry+"/app:1", wanted)
	s := containerStore(t, registry)
	for _, ref := range []image.Ref{image.ParseRef(registry+"/app@"+digestOf(t, wanted), ""), image.ParseRef(registry+"/app:1", digestOf(t, wanted))} {
		wantRetry(t, fetch(t, s, ref), "content does not match its digest")
	}
	checkImages(t, s, 0)
}

// TestContainerLimits checks that an image of too many bytes is refused, before its layers are fetched if
// their sizes say so.
func TestContainerLimits(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	bomb := zipped(t, framework.TarOf(t, "zeros", make([]byte, 16<<20)))
	framework.PushImage(t, registry+"/bomb:1", containerImage(t, "amd64", containerConfig, bomb))
	framework.PushImage(t, registry+"/zstd:1", containerImage(t, "amd64", containerConfig, zstandard(t, framework.TarOf(t, "zeros", make([]byte, 16<<20)))))
	framework.PushImage(t, registry+"/window:1", containerImage(t, "amd64", containerConfig, zstandard(t, framework.TarOf(t, "x", disk()), zstd.WithWindowSize(128<<20))))
	framework.PushImage(t, registry+"/large:1", containerImage(t, "amd64", containerConfig, plain(framework.TarOf(t, "x", make([]byte, 16<<20)))))
	layers := make([]v1.Layer, 128)
	for k := range layers {
		layers[k] = plain(framework.TarOf(t, fmt.Sprint(k), nil))
	}
	framework.PushImage(t, registry+"/layers:1", containerImage(t, "amd64", containerConfig, layers...))
	env := v1.Config{Env: []string{"A=" + strings.Repeat("x", 300_000)}}
	framework.PushImage(t, registry+"/config:1", containerImage(t, "amd64", env, bomb))
	framework.PushImage(t, registry+"/history:1", containerImage(t, "amd64", v1.Config{Labels: map[string]string{"a": strings.Repeat("x", 2<<20)}}, bomb))
	framework.PushImage(t, registry+"/env:1", containerImage(t, "amd64", v1.Config{Env: []string{"=x"}}, bomb))
	for repository, message := range map[string]string{
		"bomb": "--image-max-size", "zstd": "--image-max-size", "window": "needs more than 67108864 bytes of memory", "large": "--image-max-size", "layers": "it may have at most 127", "config": "may have at most 262144",
		"history": "it may have 0 to 1048576", "env": `the variable "=x"`,
	} {
		s := containerStore(t, registry)
		s.Sources = nil
		allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: []string{registry}, MaxSize: 8 << 20})
		assert.ErrorSays(t, repository, fetch(t, s, image.ParseRef(registry+"/"+repository+":1", "")), message)
		checkImages(t, s, 0)
	}
}

// TestContainerNoSpace checks that an image that does not fit on a disk is fetched once there is space.
func TestContainerNoSpace(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("drover-test", dir, "tmpfs", 0, "size=2M"); err != nil {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	var asked atomic.Int32
	registry := framework.NewRegistry(t, counted(&asked))
	content := bytes.Repeat([]byte("not zeros "), 400_000)
	framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, zipped(t, framework.TarOf(t, "app", content))))
	s := containerStore(t, registry)
	s.Dir, s.Stage, s.Space = dir, atomicfile.Folder{Path: dir}.MakeFolder, &diskspace.Disk{Dir: dir}
	assert.NoError(t, os.Mkdir(filepath.Join(dir, "cache"), 0o700))
	ref := image.ParseRef(registry+"/app:1", "")
	wantRetry(t, fetch(t, s, ref), "its root has at least")
	before := asked.Load()
	wantRetry(t, fetch(t, s, ref), "it needs at least")
	left, err := os.ReadDir(dir)
	all, listErr := s.List()
	assert.True(t, err == nil && listErr == nil && len(left) == 1 && len(all) == 0, "left are %v, %v, and the images %v, %v", left, err, all, listErr)
	n := asked.Load() - before
	assert.True(t, n <= 1, "%d blobs were fetched", n)
	assert.NoError(t, unix.Mount("", dir, "", unix.MS_REMOUNT, "size=16M"))
	assert.NoError(t, fetch(t, s, ref))
}

// TestDamagedRoot checks that a root which was changed or cut off is not opened.
func TestDamagedRoot(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	for name, damage := range map[string]func(b []byte) []byte{
		"empty":         func([]byte) []byte { return nil },
		"cut off":       func(b []byte) []byte { return b[:len(b)-4096] },
		"in a block":    func(b []byte) []byte { return b[:len(b)-5] },
		"longer":        func(b []byte) []byte { return append(b, make([]byte, 4096)...) },
		"configuration": func(b []byte) []byte { return bytes.Replace(b, []byte("--serve"), []byte("--other"), 1) },
		"superblock":    func(b []byte) []byte { b[1100]++; return b },
		"place":         func(b []byte) []byte { b[len(b)-64+7]++; return b },
	} {
		s := containerStore(t, registry)
		ref := image.ParseRef(registry+"/app:1", "")
		assert.NoError(t, fetch(t, s, ref))
		path, _ := s.Path(ref)
		content, err := os.ReadFile(path)
		assert.NoError(t, errors.Join(err, os.Chmod(path, 0o600), os.WriteFile(path, damage(content), 0o600)))
		assert.ErrorIs(t, name, assert.ErrorOf(s.OpenRoot(ref)), image.ErrUnavailable, "was damaged")
	}
}

// TestPruneRoots checks that a root which is in use is kept, and that another is removed with its sources.
func TestPruneRoots(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	s := containerStore(t, registry)
	var refs []image.Ref
	for _, name := range []string{"kept", "removed"} {
		ref := image.ParseRef(registry+"/"+name+":1", "")
		framework.PushImage(t, ref.Source.Name, containerImage(t, "amd64", containerConfig, appLayers(t, name)...))
		assert.NoError(t, fetch(t, s, ref))
		refs = append(refs, ref)
	}
	assert.NoError(t, s.MakeLock())
	kept, removed := openRoot(t, s, refs[0]), openRoot(t, s, refs[1])
	pruned, err := s.Prune(t.Context(), func() (map[string]bool, error) { return map[string]bool{kept.Name: true}, nil })
	assert.NoError(t, err)
	assert.True(t, len(pruned) == 1 && pruned[0].Name == removed.Name && pruned[0].Sources[0] == refs[1].Source.Text() && pruned[0].Digest == removed.Digest,
		"it removed %+v", pruned)
	openRoot(t, s, refs[0])
	assert.ErrorIs(t, "OpenRoot", assert.ErrorOf(s.OpenRoot(refs[1])), image.ErrUnavailable)
	assert.NoError(t, fetch(t, s, refs[1]))
}

// TestPruneIsKilled checks that the next Prune removes what one has left that ended after it had removed an image, and
// that a fetch does not depend on that.
func TestPruneIsKilled(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	s := containerStore(t, registry)
	assert.NoError(t, s.MakeLock())
	ref := image.ParseRef(registry+"/app:1", "")
	framework.PushImage(t, ref.Source.Name, containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	unused := func() (map[string]bool, error) { return nil, nil }
	for range 2 {
		assert.NoError(t, fetch(t, s, ref))
		path, exists := s.Path(ref)
		assert.Require(t, exists, "it was not fetched")
		assert.NoError(t, os.Remove(path)) // which Prune does first
	}
	removed, err := s.Prune(t.Context(), unused)
	assert.NoError(t, err)
	left, err := filepath.Glob(s.File("*"))
	if err != nil || len(left) != 1 || len(removed) != 0 { // the lock
		t.Errorf("left are %v, %v, and it removed %v", left, err, removed)
	}
}

// TestContainerStalls checks that the fetch ends where nothing comes any more.
func TestContainerStalls(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	registry := framework.NewRegistry(t, blobs(func(w http.ResponseWriter, r *http.Request, blob []byte) {
		if bytes.HasPrefix(blob, []byte("{")) {
			_, _ = w.Write(blob)
			return
		}
		_, _ = w.Write(blob[:len(blob)/2])
		w.(http.Flusher).Flush()
		cancel() // as the caller does where nothing more comes
		<-r.Context().Done()
	}))
	framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	s := containerStore(t, registry)
	timer := time.AfterFunc(time.Hour, cancel)
	defer timer.Stop()
	wantRetry(t, s.Fetch(ctx, image.ParseRef(registry+"/app:1", ""), &watchdog{timer, time.Hour, func(string) {}}), "cancelled")
	checkImages(t, s, 0)
}

// TestConverterClaims checks that what a converter says is not believed: its image may have taken it over.
func TestConverterClaims(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	for name, c := range map[string]struct {
		claim rootfs.Result
		says  string
	}{
		"nothing was made":  {rootfs.Result{Size: 1 << 20}, "checking the root that was made of the image"},
		"a negative size":   {rootfs.Result{Size: -4096}, "checking the root that was made of the image"},
		"a disk elsewhere":  {rootfs.Result{Size: 4096, Disk: &rootfs.Range{Offset: -1, Size: 1 << 40}}, ""},
		"a terminal's text": {rootfs.Result{Reason: rootfs.ReasonContent, Message: "a\x1b[2Jb\xff\n" + strings.Repeat("x", 5000)}, "a?[2Jb??xxx"},
		"another reason":    {rootfs.Result{Reason: "\x1bnews", Message: "x"}, `unknown reason, "\x1bnews"`},
	} {
		s := containerStore(t, registry)
		s.Convert = func(context.Context, rootfs.Request, rootfs.Open, erofs.File) (rootfs.Result, error) {
			return c.claim, nil
		}
		err := fetch(t, s, image.ParseRef(registry+"/app:1", ""))
		wantRetry(t, err, c.says)
		assert.True(t, err == nil || (len(err.Error()) <= 1500 && !strings.ContainsAny(err.Error(), "\x1b\n")), "%s: got %q", name, err)
		checkImages(t, s, 0)
	}
}

// TestConverterClaimsSize checks that a root has as many bytes as its converter and its superblock say.
func TestConverterClaimsSize(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	for _, blocks := range []uint32{0, 1, 3, math.MaxUint32} {
		s := containerStore(t, registry)
		s.Convert = func(_ context.Context, _ rootfs.Request, _ rootfs.Open, out erofs.File) (rootfs.Result, error) {
			super := make([]byte, erofs.BlockSize-1024) // of a file system of two blocks
			binary.LittleEndian.PutUint32(super, 0xe0f5e1e2)
			binary.LittleEndian.PutUint32(super[36:], blocks)
			binary.LittleEndian.PutUint32(super[4:], ^crc32.Checksum(super, crc32.MakeTable(crc32.Castagnoli)))
			_, err := out.WriteAt(super, 1024)
			return rootfs.Result{Size: int64(blocks) * erofs.BlockSize}, errors.Join(err, out.Truncate(2*erofs.BlockSize))
		}
		wantRetry(t, fetch(t, s, image.ParseRef(registry+"/app:1", "")), "it has 8192 bytes, and its converter says")
		checkImages(t, s, 0)
	}
}

// TestConverterFails checks that nothing is left of a conversion that was killed, and that the image is fetched again.
func TestConverterFails(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	ref := image.ParseRef(registry+"/app:1", "")
	framework.PushImage(t, ref.Source.Name, containerImage(t, "amd64", containerConfig, appLayers(t, "program")...))
	s := containerStore(t, registry)
	killed := errors.New("signal: killed")
	s.Convert = func(ctx context.Context, request rootfs.Request, open rootfs.Open, out erofs.File) (rootfs.Result, error) {
		_, err := rootfs.ConvertHere(ctx, request, open, out)
		assert.NoError(t, err)
		return rootfs.Result{}, &rootfs.ConverterError{Err: killed}
	}
	wantRetry(t, fetch(t, s, ref), "the conversion has failed: signal: killed")
	checkImages(t, s, 0)
	s.Convert = nil
	assert.ErrorIs(t, "Fetch", fetch(t, s, ref), image.ErrUnsupported, "does not support container images")
	s.Convert = rootfs.ConvertHere
	assert.NoError(t, fetch(t, s, ref))
	checkRoot(t, openRoot(t, s, ref))
}

// TestBuiltIn checks that the image on this host is taken as any other, as its file is at each fetch.
func TestBuiltIn(t *testing.T) {
	t.Parallel()
	s, ref, file := containerStore(t, "localhost:1"), image.ParseRef(source.BuiltInText, ""), filepath.Join(t.TempDir(), "image.tar")
	allow(t, s, image.Policy{BuiltIn: file})
	assert.ErrorIs(t, "without the file", fetch(t, s, ref), image.ErrUnavailable, "make guest")
	for _, content := range []string{"first", "second"} {
		i := containerImage(t, "amd64", containerConfig, appLayers(t, content)...)
		assert.NoError(t, tarball.WriteToFile(file, name.MustParseReference("built-in"), i))
		assert.NoError(t, fetch(t, s, ref))
		root := openRoot(t, s, ref)
		checkRoot(t, root)
		want, err := filetree.HashOf(strings.NewReader(content))
		assert.NoError(t, err)
		assert.Equal(t, "of the "+content+" file the program has the hash", filetree.Read(t, root.File)["bin/app"].Hash, want)
	}
}
