// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package converter

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/sys/unix"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/erofs"
	"cloudnative.tw/drover/internal/image/rootfs"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/framework/filetree"
)

// progress ignores how far a fetch is.
type progress struct{}

func (progress) ResetStallTimer()   {}
func (progress) Report(string)      {}
func (progress) Expect(int64) error { return nil }
func (progress) Received(int64)     {}

// newStore returns a store of images that a registry gives out and the process converts, and its staging folder.
func newStore(t *testing.T, registry string) (s *image.Store, staging string) {
	t.Helper()
	return newStoreIn(t, t.TempDir(), registry)
}

// newStoreIn does the same in a folder.
func newStoreIn(t *testing.T, dir, registry string) (s *image.Store, staging string) {
	t.Helper()
	staging = filepath.Join(dir, "tmp")
	assert.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "cache"), 0o700), os.Mkdir(staging, 0o700)))
	sources, err := image.NewSources(image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: []string{registry}})
	assert.NoError(t, err)
	return &image.Store{
		Dir: dir, Sub: "cache", Clock: clock.RealClock{}, Stage: atomicfile.Folder{Path: staging}.MakeFolder,
		Sources: sources, Space: &diskspace.Disk{Dir: dir}, Convert: newConverter(t, machineProgram, ownUser()).Convert,
	}, staging
}

// imageOf returns an image with a file in each layer.
func imageOf(t *testing.T, file string, contents ...[]byte) v1.Image {
	t.Helper()
	made := empty.Image
	for _, content := range contents {
		var err error
		made, err = mutate.AppendLayers(made, static.NewLayer(framework.TarOf(t, file, content), mediatypes.OCIUncompressedLayer))
		assert.NoError(t, err)
	}
	made, err := mutate.Config(made, v1.Config{Entrypoint: []string{"/app"}})
	assert.NoError(t, err)
	return made
}

// checkLeft checks how many images a store has, and that nothing is where they are made.
func checkLeft(t *testing.T, s *image.Store, staging string, images int) {
	t.Helper()
	left, err := os.ReadDir(staging)
	assert.NoError(t, err)
	all, err := s.List()
	assert.True(t, err == nil && len(all) == images && len(left) == 0, "the store has %v, %v, want %d, and %v is left behind", all, err, images, left)
}

// TestStore checks that a store of images fetches a container image by the process, and leaves nothing of one that is
// refused there.
func TestStore(t *testing.T) {
	t.Parallel()
	registry := framework.NewRegistry(t, nil)
	s, staging := newStore(t, registry)
	push := func(name, file string) image.Ref {
		ref := image.ParseRef(registry+"/"+name+":1", "")
		framework.PushImage(t, ref.Source.Name, imageOf(t, file, []byte("program")))
		return ref
	}
	app := push("app", "app")
	assert.NoError(t, s.Fetch(t.Context(), app, progress{}))
	root, err := s.OpenRoot(app)
	assert.NoError(t, err)
	defer func() { _ = root.Close() }()
	tree := filetree.Read(t, root.File)
	assert.True(t, len(tree) == 2 && root.Config.Entrypoint[0] == "/app", "the root has %v and %+v", tree, root.Config)
	assert.ErrorIs(t, "Fetch", s.Fetch(t.Context(), push("odd", "a/.wh."), progress{}), image.ErrUnavailable, "the image cannot be the root of a machine")
	checkLeft(t, s, staging, 1)
}

// TestKilled kills the process before it has read any of the layers, in the midst of one, and after it has written all
// but the last one, and checks that nothing is left of that and that the next fetch makes the same as ever.
func TestKilled(t *testing.T) { //nolint:paralleltest // no other process of the kind may be there
	size := 8 << 20
	contents := [][]byte{bytes.Repeat([]byte("first layer "), size/12), bytes.Repeat([]byte("second one "), size/11)}
	for name, at := range map[string]struct{ layer, sent int }{"before": {0, 0}, "mid-way": {0, size / 2}, "after a layer": {1, 0}, "at the end": {1, size - 1000}} {
		t.Run(name, func(t *testing.T) {
			kills, layers := true, 0
			registry := framework.NewRegistry(t, func(inner http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					recorded := httptest.NewRecorder()
					inner.ServeHTTP(recorded, r)
					blob := recorded.Body.Bytes()
					isLayer := r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/blobs/") && len(blob) > size/2
					if isLayer && layers == at.layer && kills {
						n, err := w.Write(blob[:min(at.sent, len(blob))])
						assert.NoError(t, err)
						w.(http.Flusher).Flush()
						killConverter(t)
						blob, kills = blob[n:], false
					} else {
						maps.Copy(w.Header(), recorded.Header())
						w.WriteHeader(recorded.Code)
					}
					if isLayer {
						layers++
					}
					_, _ = w.Write(blob)
				})
			})
			ref := image.ParseRef(registry+"/app:1", "")
			framework.PushImage(t, ref.Source.Name, imageOf(t, "app", contents...))
			s, staging := newStore(t, registry)
			assert.ErrorSays(t, "Fetch", s.Fetch(t.Context(), ref, progress{}), "the conversion has failed: signal: killed")
			assert.True(t, !kills, "nothing was killed")
			checkLeft(t, s, staging, 0)
			assert.NoError(t, s.Fetch(t.Context(), ref, progress{}))
			checkLeft(t, s, staging, 1)
			expected, _ := newStore(t, registry)
			expected.Convert = rootfs.ConvertHere
			assert.NoError(t, expected.Fetch(t.Context(), ref, progress{}))
			have, _ := s.Path(ref)
			want, _ := expected.Path(ref)
			assert.True(t, framework.ReadFile(t, have) == framework.ReadFile(t, want), "the root is another one")
		})
	}
}

// TestDiskFills checks that nothing is left of a conversion during which something else fills the disk, and that the
// image is fetched once there is space.
func TestDiskFills(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("drover-test", dir, "tmpfs", 0, "size=24M"); err != nil {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	filler := filepath.Join(dir, "filler")
	var fills atomic.Bool
	fills.Store(true)
	size := 8 << 20
	registry := framework.NewRegistry(t, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			recorded := httptest.NewRecorder()
			inner.ServeHTTP(recorded, r)
			if r.Method == http.MethodGet && recorded.Body.Len() > size/2 && fills.Load() {
				_ = os.WriteFile(filler, make([]byte, 32<<20), 0o600) // as much of it as there is space for
			}
			maps.Copy(w.Header(), recorded.Header())
			w.WriteHeader(recorded.Code)
			_, _ = w.Write(recorded.Body.Bytes())
		})
	})
	ref := image.ParseRef(registry+"/app:1", "")
	framework.PushImage(t, ref.Source.Name, imageOf(t, "app", bytes.Repeat([]byte("not zeros "), size/10)))
	s, staging := newStoreIn(t, dir, registry)
	assert.ErrorSays(t, "Fetch", s.Fetch(t.Context(), ref, progress{}), "there is no space for it")
	checkLeft(t, s, staging, 0)
	assert.ErrorSays(t, "Fetch again", s.Fetch(t.Context(), ref, progress{}), "it needs at least")
	fills.Store(false)
	assert.NoError(t, os.Remove(filler))
	assert.NoError(t, s.Fetch(t.Context(), ref, progress{}))
	checkLeft(t, s, staging, 1)
}

// lowestFree is how little space a disk had left at any time.
type lowestFree struct {
	mu    sync.Mutex
	bytes int64
}

func (f *lowestFree) record(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bytes = min(f.bytes, bytes)
}

// lowest is a file whose writer notes how little space the disk had left at any time.
type lowest struct {
	erofs.File

	disk *diskspace.Disk
	free *lowestFree
}

// WriteAt implements io.WriterAt.
func (l lowest) WriteAt(p []byte, at int64) (int, error) {
	n, err := l.File.WriteAt(p, at)
	free, failed := l.disk.Free()
	if failed == nil {
		l.free.record(free)
	}
	return n, errors.Join(err, failed)
}

// TestConversionsTogether checks that conversions which begin at the same time leave enough space free, although the
// disk has space for each of them alone.
func TestConversionsTogether(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("drover-test", dir, "tmpfs", 0, "size=40M"); err != nil {
		t.Skip("a small disk has to be mounted: run the tests as root")
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	const reserve, size, count = 2 << 20, 24 << 20, 2
	var begun sync.WaitGroup
	begun.Add(count)
	registry := framework.NewRegistry(t, nil)
	s, staging := newStoreIn(t, dir, registry)
	free := lowestFree{bytes: size * count}
	convert := s.Convert
	s.Convert = func(ctx context.Context, request rootfs.Request, open rootfs.Open, out erofs.File) (rootfs.Result, error) {
		begun.Done()
		begun.Wait()
		return convert(ctx, request, open, lowest{out, s.Space, &free})
	}
	errs := make([]error, count)
	var all sync.WaitGroup
	for n := range count {
		ref := image.ParseRef(fmt.Sprintf("%s/app:%d", registry, n), "")
		framework.PushImage(t, ref.Source.Name, imageOf(t, "app", bytes.Repeat(fmt.Appendf(nil, "%09d ", n), size/10)))
		all.Go(func() { errs[n] = s.Fetch(t.Context(), ref, progress{}) })
	}
	all.Wait()
	failed := errors.Join(errs...)
	assert.ErrorSays(t, "Fetch", failed, "there is no space for it")
	assert.True(t, free.bytes >= reserve, "%d bytes were free at the least, and %d must stay free", free.bytes, reserve)
	t.Logf("%d bytes were free at the least: %v", free.bytes, failed)
	if errs[0] == nil || errs[1] == nil {
		checkLeft(t, s, staging, 1)
	}
}

// killConverter kills the process once it is there.
func killConverter(t *testing.T) {
	t.Helper()
	assert.Eventually(t, "the converter is killed", func(testing.TB) error {
		for _, pid := range proc.IDs() {
			line, _ := os.ReadFile(proc.Path(pid, "cmdline"))
			stat, _ := os.ReadFile(proc.Path(pid, "stat"))
			if strings.Contains(string(line), "\x00"+Command+"\x00") && strings.Contains(string(stat), fmt.Sprintf(" %d ", os.Getpid())) {
				return unix.Kill(pid, unix.SIGKILL)
			}
		}
		return errors.New("it is not there")
	})
}
