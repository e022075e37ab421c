// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/atomicfile"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/diskspace"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// disk returns a raw disk of 1 MiB.
func disk() []byte {
	content := bytes.Repeat([]byte("drover! "), 1<<17)
	copy(content[510:], "\x55\xaa")
	return content
}

func checksum(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

// newStore returns a store that may contact the servers of the test, and the given
// registries without TLS.
func newStore(t *testing.T, plain ...string) *image.Store {
	t.Helper()
	dir := t.TempDir()
	assert.NoError(t, errors.Join(os.Mkdir(filepath.Join(dir, "cache"), 0o700), os.Mkdir(stagingDir(dir), 0o700)))
	s := &image.Store{Dir: dir, Sub: "cache", Clock: clock.RealClock{}, Stage: atomicfile.Folder{Path: stagingDir(dir)}.MakeFolder, Space: &diskspace.Disk{Dir: dir}}
	allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: plain})
	return s
}

func stagingDir(dir string) string { return filepath.Join(dir, "tmp") }

// allow makes a store fetch what a policy allows.
func allow(t *testing.T, s *image.Store, p image.Policy) {
	t.Helper()
	sources, err := image.NewSources(p)
	assert.NoError(t, err)
	s.Sources = sources
}

func serve(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return server.URL + "/disk.img"
}

// TestMain makes the web servers of tests trusted.
func TestMain(m *testing.M) {
	remove, err := framework.TrustTestServers()
	if err != nil {
		panic(err)
	}
	code := m.Run()
	remove()
	os.Exit(code)
}

// TestRedirects checks that redirects lead anywhere except out of https.
func TestRedirects(t *testing.T) {
	t.Parallel()
	content := disk()
	give := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }
	web := func(secure bool, f http.HandlerFunc) string {
		server := httptest.NewUnstartedServer(f)
		if secure {
			server.StartTLS()
		} else {
			server.Start()
		}
		t.Cleanup(server.Close)
		return server.URL
	}
	for name, c := range map[string]struct {
		from, to bool // https
		says     string
	}{
		"http to http":   {false, false, ""},
		"http to https":  {false, true, ""},
		"https to https": {true, true, ""},
		"https to http":  {true, false, "it may only go on to https://"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			to := web(c.to, give)
			from := web(c.from, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, to, http.StatusFound) })
			s := newStore(t)
			err := fetch(t, s, image.ParseRef(from, checksum(content)))
			if c.says == "" {
				assert.NoError(t, err)
				return
			}
			wantRetry(t, err, from+" redirects to "+to)
			wantRetry(t, err, c.says)
			checkImages(t, s, 0)
		})
	}
	around := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
	assert.ErrorSays(t, "redirects in a circle", fetch(t, newStore(t), image.ParseRef(around, checksum(content))), "more than 10 times")
}

// fetch fetches an image if it has to be fetched.
func fetch(t *testing.T, s *image.Store, ref image.Ref) error {
	t.Helper()
	return fetchReporting(t, s, ref, func(string) {})
}

// fetchBy is fetch with a pull policy.
func fetchBy(t *testing.T, s *image.Store, ref image.Ref, policy image.PullPolicy) error {
	t.Helper()
	needed, err := s.NeedsFetch(ref, policy)
	if err != nil || !needed {
		return err
	}
	return fetchWithin(t, s, ref, time.Hour, func(string) {})
}

// fetchReporting is fetch, and passes each status of the fetch to a function.
func fetchReporting(t *testing.T, s *image.Store, ref image.Ref, report func(status string)) error {
	t.Helper()
	needed, err := s.NeedsFetch(ref, "")
	if err != nil || !needed {
		return err
	}
	return fetchWithin(t, s, ref, time.Hour, report)
}

// fetchWithin fetches an image, and cancels that after some time without progress.
func fetchWithin(t *testing.T, s *image.Store, ref image.Ref, stall time.Duration, report func(status string)) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	timer := time.AfterFunc(stall, cancel)
	defer timer.Stop()
	return s.Fetch(ctx, ref, &watchdog{timer, stall, report})
}

// watchdog lets a timer expire when there is no progress.
type watchdog struct {
	timer  *time.Timer
	stall  time.Duration
	report func(status string)
}

func (*watchdog) Expect(int64) error { return nil }

func (*watchdog) Received(int64) {}

func (w *watchdog) ResetStallTimer() { w.timer.Reset(w.stall) }

func (w *watchdog) Report(status string) {
	w.ResetStallTimer()
	w.report(status)
}

// checkImages checks how many images there are, and that nothing unfinished is left.
func checkImages(t *testing.T, s *image.Store, images int) {
	t.Helper()
	left, err := os.ReadDir(stagingDir(s.Dir))
	assert.NoError(t, err)
	assert.True(t, len(left) == 0, "left behind: %v", left)
	have, err := s.List()
	assert.NoError(t, err)
	assert.True(t, len(have) == images, "the store has %v, want %d", have, images)
}

func TestFailures(t *testing.T) {
	t.Parallel()
	content := disk()
	for name, c := range map[string]struct {
		serve    http.HandlerFunc
		checksum string
		says     string
	}{
		"not there":     {http.NotFound, checksum(content), "404"},
		"another image": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }, checksum([]byte("x")), "its checksum is " + checksum(content)},
		"text":          {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, checksum([]byte("hello")), "not a disk image"},
		"cut off":       {cutOff(content), checksum(content), "the content was cut off"},
		"stalls":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, checksum(content), "cancelled"},
		"stalls midway": {stall(content), checksum(content), "cancelled"},
		"no server":     {nil, checksum(content), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := "http://" + framework.FreeAddress(t) + "/disk.img"
			if c.serve != nil {
				url = serve(t, c.serve)
			}
			s, stallAfter := newStore(t), time.Hour
			if strings.Contains(name, "stalls") {
				stallAfter = 200 * time.Millisecond
			}
			err := fetchWithin(t, s, image.ParseRef(url, c.checksum), stallAfter, func(string) {})
			wantRetry(t, err, c.says)
			wantRetry(t, err, "image "+url+": ")
			checkImages(t, s, 0)
		})
	}
}

// wantRetry checks an error after which a later attempt may succeed.
func wantRetry(t *testing.T, err error, message string) {
	t.Helper()
	assert.True(t, err != nil && !errors.Is(err, image.ErrInvalid) && strings.Contains(err.Error(), message), "got the error %v, want %q", err, message)
}

func cutOff(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:1000])
	}
}

func stall(content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content[:1000])
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
}

// TestPullNever checks that an image that may not be fetched is used if it is in the store.
func TestPullNever(t *testing.T) {
	t.Parallel()
	content := disk()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	s := newStore(t)
	ref := image.ParseRef(url, checksum(content))
	assert.ErrorIs(t, "Fetch", fetchBy(t, s, ref, image.PullNever), image.ErrUnavailable, "pullPolicy is Never")
	assert.NoError(t, fetch(t, s, ref))
	assert.NoError(t, fetchBy(t, s, ref, image.PullNever))
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := checksum(nil)
	sources, err := image.NewSources(image.Policy{PlainHTTP: []string{"plain:5000"}})
	assert.NoError(t, err)
	for name, c := range map[string]struct {
		ref  image.Ref
		kind error
	}{
		"a file":                 {image.ParseRef("/x.img", ""), nil},
		"a file, checksum":       {image.ParseRef("/x.img", good), image.ErrUnsupported},
		"web":                    {image.ParseRef("https://x/y", good), nil},
		"web, unchecked":         {image.ParseRef("https://x/y", ""), nil},
		"web, bad checksum":      {image.ParseRef("http://x/y", "md5:1"), image.ErrInvalid},
		"registry":               {image.ParseRef("oci://x/y", ""), nil},
		"registry and checksum":  {image.ParseRef("oci://x/y", good), nil},
		"plain, unchecked":       {image.ParseRef("oci://plain:5000/y:1", ""), nil},
		"plain, PLAIN unchecked": {image.ParseRef("oci://PLAIN:5000/y:1", ""), nil},
		"plain and checksum":     {image.ParseRef("oci://plain:5000/y:1", good), nil},
		"container":              {image.ParseRef("x/y", ""), nil},
		"container, checksum":    {image.ParseRef("x/y", good), image.ErrUnsupported},
		"container, unchecked":   {image.ParseRef("plain:5000/y:1", ""), nil},
		"container, by digest":   {image.ParseRef("plain:5000/y@"+good, ""), nil},
		"plain, by digest":       {image.ParseRef("oci://plain:5000/y@"+good, ""), nil},
	} {
		assert.ErrorIs(t, name, c.ref.Validate("image"), c.kind)
		assert.Equal(t, name+": it counts as unchecked", sources.IsUnchecked(c.ref), strings.Contains(name, "unchecked"))
	}
}

// TestFetchedAgain checks that an image which is fetched again, by another source, is
// still the same file, which disks stand on.
func TestFetchedAgain(t *testing.T) {
	t.Parallel()
	content := disk()
	s := newStore(t)
	var files []os.FileInfo
	var sources []string
	for range 2 {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
		ref := image.ParseRef(url, "")
		assert.NoError(t, fetch(t, s, ref))
		path, _ := s.Path(ref)
		info, err := os.Stat(path)
		assert.NoError(t, err)
		files, sources = append(files, info), append(sources, url)
	}
	assert.True(t, os.SameFile(files[0], files[1]) && files[0].ModTime().Equal(files[1].ModTime()), "it was replaced: %v, %v", files[0], files[1])
	checkImages(t, s, 1)
	have, err := s.List()
	assert.NoError(t, err)
	slices.Sort(sources)
	if i := have[0]; i.Digest != checksum(content) || i.Size != int64(len(content)) || i.FetchedAt.IsZero() || !slices.Equal(i.Sources, sources) {
		t.Errorf("the store has %+v, want the sources %q", i, sources)
	}
}

// TestPrune checks that pruning waits for disks that are being made, that others wait for
// it, and that a removed image is fetched again.
func TestPrune(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var kept, removed image.StoredImage
	images := map[string]image.Ref{}
	for i := range 2 {
		content := append(disk(), make([]byte, 512*i)...)
		ref := image.ParseRef(serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }), "")
		assert.NoError(t, fetch(t, s, ref))
		images[checksum(content)] = ref
	}
	have, err := s.List()
	assert.NoError(t, err)
	kept, removed = have[0], have[1]
	used := func() (map[string]bool, error) {
		assert.ErrorIs(t, "Hold meanwhile", assert.ErrorOf(s.Hold()), image.ErrLocked, "being pruned")
		return map[string]bool{kept.Name: true}, nil
	}

	release, err := s.Hold()
	assert.NoError(t, err)
	cut, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, "Prune while a disk is made", assert.ErrorOf(s.Prune(cut, used)), context.DeadlineExceeded)
	release()
	assert.ErrorIs(t, "Prune", assert.ErrorOf(s.Prune(t.Context(), func() (map[string]bool, error) { return nil, io.ErrNoProgress })), io.ErrNoProgress)
	checkImages(t, s, 2)
	pruned, err := s.Prune(t.Context(), used)
	assert.NoError(t, err)
	assert.True(t, len(pruned) == 1 && pruned[0].Name == removed.Name, "it removed %+v, want %+v", pruned, removed)
	checkImages(t, s, 1)
	for digest, there := range map[string]bool{kept.Digest: true, removed.Digest: false} {
		_, got := s.Path(images[digest])
		assert.True(t, got == there, "%s exists: %v", digest, got)
	}
	assert.NoError(t, fetch(t, s, images[removed.Digest]))
	checkImages(t, s, 2)
}

// compressed returns a layer whose blob is a compressed archive.
func compressed(t *testing.T, archive []byte) v1.Layer {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	assert.NoError(t, err)
	return layer
}

// plain returns a layer of an archive whose blob is the archive itself.
func plain(archive []byte) v1.Layer { return static.NewLayer(archive, mediatypes.OCIUncompressedLayer) }

// push puts an image into a registry that the test runs. Its answers go through
// around.
func push(t *testing.T, around func(http.Handler) http.Handler, layers ...v1.Layer) string {
	t.Helper()
	return pushTo(t, framework.NewRegistry(t, around), layers...)
}

// pushTo puts an image into a registry.
func pushTo(t *testing.T, host string, layers ...v1.Layer) string {
	t.Helper()
	reference := host + "/disks/debian:12"
	image, err := mutate.AppendLayers(empty.Image, layers...)
	assert.NoError(t, err)
	framework.PushImage(t, reference, image)
	return "oci://" + reference
}

// hostOf returns the registry of a source.
func hostOf(source string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(source, "oci://"), "/")
	return host
}

// blobs makes a registry answer requests for a blob in another way.
func blobs(answer func(w http.ResponseWriter, r *http.Request, blob []byte)) func(http.Handler) http.Handler {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/blobs/") {
				inner.ServeHTTP(w, r)
				return
			}
			recorded := httptest.NewRecorder()
			inner.ServeHTTP(recorded, r)
			answer(w, r, recorded.Body.Bytes())
		})
	}
}

// TestRegistryFails checks that a blob which is not available, or does not match its
// digest, is reported as such, in the layer of the disk and in others.
func TestRegistryFails(t *testing.T) {
	t.Parallel()
	replace := func(old, with string) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, blob []byte) {
			_, _ = w.Write(bytes.Replace(blob, []byte(old), []byte(with), 1))
		}
	}
	refuse := func(status int) func(http.ResponseWriter, *http.Request, []byte) {
		return func(w http.ResponseWriter, _ *http.Request, _ []byte) { w.WriteHeader(status) }
	}
	for name, c := range map[string]struct {
		answer func(http.ResponseWriter, *http.Request, []byte)
		says   string
	}{
		"blob is not there":     {refuse(http.StatusNotFound), "404"},
		"blob is not given out": {refuse(http.StatusForbidden), "403"},
		"disk was changed":      {replace("drover! ", "tamper! "), "content does not match its digest"},
		"layer below changed":   {replace("below the disk", "above the disk"), "content does not match its digest"},
		"layer above changed":   {replace("over the disk", "next the disk"), "content does not match its digest"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ref := image.ParseRef(push(t, blobs(c.answer),
				plain(framework.TarOf(t, "below", []byte("below the disk"))), plain(framework.TarOf(t, "disk/debian.img", disk())), plain(framework.TarOf(t, "over", []byte("over the disk")))), "")

			s := newStore(t, hostOf(ref.Source.Text()))
			err := fetch(t, s, ref)
			wantRetry(t, err, c.says)
			_, exists := s.Path(ref)
			assert.True(t, !exists, "the image exists")
			checkImages(t, s, 0)
		})
	}
}

// progressSignal is signaled at each progress of a fetch.
type progressSignal chan struct{}

func (s progressSignal) ResetStallTimer() {
	select {
	case s <- struct{}{}:
	default:
	}
}

func (s progressSignal) Report(string) {}

func (s progressSignal) Expect(int64) error { return nil }

func (s progressSignal) Received(int64) {}

// expectation has the bytes that a fetch expects and has received.
type expectation struct {
	total, received atomic.Int64
	refuse          error
}

func (*expectation) ResetStallTimer()       {}
func (*expectation) Report(string)          {}
func (e *expectation) Received(bytes int64) { e.received.Add(bytes) }
func (e *expectation) Expect(total int64) error {
	e.total.Store(total)
	return e.refuse
}

// TestExpectedSize checks that a fetch states the size of its content before any of that is sent, ends if it has to, and
// counts what is sent of the content, and nothing else.
func TestExpectedSize(t *testing.T) {
	t.Parallel()
	zipped := zip(t, disk())
	layers := []v1.Layer{plain(framework.TarOf(t, "below", make([]byte, 1<<20))), plain(framework.TarOf(t, "disk/debian.img", disk()))}
	size := int64(0)
	for _, l := range layers {
		n, err := l.Size()
		assert.NoError(t, err)
		size += n
	}
	var expected *expectation
	registry := framework.NewRegistry(t, blobs(func(w http.ResponseWriter, _ *http.Request, blob []byte) {
		assert.True(t, bytes.HasPrefix(blob, []byte("{")) || (expected.total.Load() == size && expected.refuse == nil),
			"it has stated %d bytes, and asks for a layer", expected.total.Load())
		_, _ = w.Write(blob)
	}))
	framework.PushImage(t, registry+"/app:1", containerImage(t, "amd64", containerConfig, layers...))
	for source, size := range map[string]int64{
		serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(zipped) }): int64(len(zipped)),
		serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush() // so that it lacks a length
			_, _ = w.Write(zipped)
		}): 0,
		"oci://" + registry + "/app:1": size,
		registry + "/app:1":            size,
	} {
		s := containerStore(t, registry)
		expected = &expectation{refuse: errors.New("not now")}
		assert.ErrorIs(t, source, s.Fetch(t.Context(), image.ParseRef(source, ""), expected), expected.refuse, "not now")
		expected = &expectation{}
		assert.NoError(t, s.Fetch(t.Context(), image.ParseRef(source, ""), expected))
		total, received := expected.total.Load(), expected.received.Load()
		assert.True(t, total == size && received == max(size, int64(len(zipped))), "%s: it has received %d of %d bytes, want %d", source, received, total, size)
	}
}

// TestSlowLayer checks that each piece of a layer is progress, even if nothing of the layer is
// used: the server sends the next one only then.
func TestSlowLayer(t *testing.T) {
	t.Parallel()
	const pieces = 30
	progress := make(chan struct{}, 1)
	beside, content := framework.TarOf(t, "etc/debian.img", []byte("no disk")), disk()
	slowly := func(w http.ResponseWriter, r *http.Request, blob []byte) {
		if !bytes.Equal(blob, beside) {
			_, _ = w.Write(blob)
			return
		}
		for piece := range slices.Chunk(blob, (len(blob)+pieces-1)/pieces) {
			select { // bytes that were read before do not count for this piece
			case <-progress:
			default:
			}
			_, _ = w.Write(piece)
			w.(http.Flusher).Flush()
			select {
			case <-progress:
			case <-r.Context().Done():
			}
		}
	}
	ref := image.ParseRef(push(t, blobs(slowly), plain(beside), plain(framework.TarOf(t, "disk/debian.img", content))), "")
	s := newStore(t, hostOf(ref.Source.Text()))
	assert.NoError(t, s.Fetch(t.Context(), ref, progressSignal(progress)))
	path, _ := s.Path(ref)
	got, err := os.ReadFile(path)
	assert.True(t, err == nil && bytes.Equal(got, content), "the disk is not what was pushed: %v", err)
}

// TestRegistry checks the layout of container disks, and other layouts.
func TestRegistry(t *testing.T) {
	t.Parallel()
	content := disk()
	for name, c := range map[string]struct {
		files map[string][]byte
		says  string
	}{
		"a disk":           {map[string][]byte{"disk/debian.img": content}, ""},
		"beside others":    {map[string][]byte{"./disk/debian.img": content, "etc/disk/x": content, "disk/.hidden": content}, ""},
		"no disk":          {map[string][]byte{"disk.img": content, "disk/sub/x": content}, "no disk in /disk"},
		"two disks":        {map[string][]byte{"disk/a": content, "disk/b": content}, "more than one file"},
		"no disk image":    {map[string][]byte{"disk/a": []byte("hello")}, "not a disk image"},
		"not in registry":  {nil, "the server answered 404 Not Found"},
		"no such registry": {nil, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var layers []v1.Layer
			for path, content := range c.files {
				layers = append(layers, compressed(t, framework.TarOf(t, path, content)))
			}
			source := push(t, nil, layers...)
			switch name {
			case "not in registry":
				source = strings.Replace(source, ":12", ":13", 1)
			case "no such registry":
				source = "oci://" + framework.FreeAddress(t) + "/x"
			}
			s := newStore(t, hostOf(source))
			ref := image.ParseRef(source, "")
			err := fetch(t, s, ref)
			path, exists := s.Path(ref)
			if c.says != "" {
				wantRetry(t, err, c.says)
				assert.True(t, !exists, "the image exists")
				checkImages(t, s, 0)
				return
			}
			assert.NoError(t, err)
			got, err := os.ReadFile(path)
			assert.True(t, err == nil && bytes.Equal(got, content), "the disk is not what was pushed: %v", err)
			checkImages(t, s, 1)
		})
	}
}

// entries returns a layer of empty files and of disks, which are files that have a letter
// for a content. A name that ends in / is a folder's.
func entries(t *testing.T, all ...string) v1.Layer {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, entry := range all {
		name, letter, ok := strings.Cut(entry, "=")
		header := tar.Header{Name: name, Mode: 0o555, Typeflag: tar.TypeReg}
		var content []byte
		switch {
		case ok:
			content = lettered(letter)
		case strings.HasSuffix(name, "/"):
			header.Typeflag = tar.TypeDir
		}
		header.Size = int64(len(content))
		assert.NoError(t, w.WriteHeader(&header))
		assert.NoError(t, assert.ErrorOf(w.Write(content)))
	}
	assert.NoError(t, w.Close())
	return compressed(t, archive.Bytes())
}

// lettered returns a disk that is identified by its first letter.
func lettered(letter string) []byte {
	content := disk()
	copy(content, letter)
	return content
}

// TestRegistryLayers checks that there is one disk in all layers, and that no layer
// removes what others have.
func TestRegistryLayers(t *testing.T) {
	t.Parallel()
	const none, many, hides = "no disk in /disk", "more than one file", "removes or hides files of /disk"
	type layers [][]string // the lowest first
	for name, c := range map[string]struct {
		layers layers
		want   string // the disk's letter, or what the error says
	}{
		"a disk below":           {layers{{"disk/", "disk/a=A"}, {"disk/"}, {"etc/x"}}, "A"},
		"a disk above":           {layers{{"etc/x"}, {"disk/a=A"}}, "A"},
		"none":                   {layers{{"disk/", "disk/.x"}}, none},
		"two disks":              {layers{{"disk/a=A"}, {"disk/b=B"}}, many},
		"two of one name":        {layers{{"disk/a=A"}, {"disk/a=B"}}, many},
		"removed":                {layers{{"disk/a=A"}, {"disk/.wh.a"}}, hides},
		"replaced by another":    {layers{{"disk/a=A"}, {"disk/b=B", "disk/.wh.a"}}, many},
		"the folder is removed":  {layers{{"disk/a=A"}, {"./.wh.disk"}}, hides},
		"the folder hides":       {layers{{"disk/.wh..wh..opq", "disk/b=B"}}, hides},
		"all is hidden":          {layers{{".wh..wh..opq", "disk/b=B"}}, hides},
		"other files are hidden": {layers{{"disk/a=A"}, {"etc/.wh..wh..opq", "etc/.wh.disk", ".wh.etc"}}, "A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var all []v1.Layer
			for _, layer := range c.layers {
				all = append(all, entries(t, layer...))
			}
			ref := image.ParseRef(push(t, nil, all...), "")
			s := newStore(t, hostOf(ref.Source.Text()))
			err := fetch(t, s, ref)
			if len(c.want) > 1 {
				wantRetry(t, err, c.want)
				return
			}
			assert.NoError(t, err)
			path, _ := s.Path(ref)
			got, err := os.ReadFile(path)
			assert.True(t, err == nil && bytes.Equal(got, lettered(c.want)), "the disk is %.1q, %v, want %s", got, err, c.want)
		})
	}
}

// TestPullAlways checks that the registry is queried each time, unless a checksum fixes
// the content.
func TestPullAlways(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	source := push(t, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/12") && r.Method == http.MethodGet {
				asked.Add(1)
			}
			inner.ServeHTTP(w, r)
		})
	}, compressed(t, framework.TarOf(t, "disk/x", disk())))
	s := newStore(t, hostOf(source))
	for policy, want := range map[image.PullPolicy]int32{image.PullIfNotPresent: 1, image.PullAlways: 2} {
		asked.Store(0)
		for range 2 {
			assert.NoError(t, fetchBy(t, s, image.ParseRef(source, ""), policy))
		}
		got := asked.Load()
		assert.True(t, got <= want && (policy != image.PullAlways || got == want), "%s asked the registry %d times, want %d", policy, got, want)
	}
}

// TestForeignLock checks that a lock which another user has made is reported at once, and
// not at each machine.
func TestForeignLock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	assert.NoError(t, s.MakeLock())
	lock := filepath.Join(s.Dir, s.Sub, "lock")
	assert.NoError(t, os.Chmod(lock, 0))
	const nobody = 65534
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = syscall.Setfsuid(nobody)
		result <- s.MakeLock()
	}()
	err := <-result
	assert.True(t, errors.Is(err, fs.ErrPermission) && strings.Contains(err.Error(), lock) && strings.Contains(err.Error(), "chown"), "got the error %v", err)
}

// TestResolve checks that a tag is resolved to the digest of the image or index that it names, and that
// the words of a registry are not repeated.
func TestResolve(t *testing.T) {
	t.Parallel()
	const secret = "hunter2"
	for what, c := range map[string]struct {
		code    int      // of the answer to
		methods []string // these
		digest  string   // in place of the right one, in the answer to HEAD
		isNamed bool     // in --image-hosts
		says    string
	}{
		"a registry":            {0, nil, "", true, ""},
		"one without HEAD":      {http.StatusMethodNotAllowed, []string{http.MethodHead}, "", true, ""},
		"one that refuses":      {http.StatusUnauthorized, []string{http.MethodHead, http.MethodGet}, "", true, "the server answered 401 Unauthorized"},
		"one without the tag":   {http.StatusNotFound, []string{http.MethodHead, http.MethodGet}, "", true, "the server answered 404 Not Found"},
		"one that is not asked": {0, nil, "", false, "--image-hosts"},
		"one with sha512":       {0, []string{http.MethodHead}, "sha512:" + strings.Repeat("a", 128), true, "is not sha256: and 64 lowercase hexadecimal digits"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			var isPushed atomic.Bool
			host := hostOf(push(t, func(inner http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if isPushed.Load() && strings.Contains(r.URL.Path, "/manifests/") && slices.Contains(c.methods, r.Method) {
						answerManifest(w, c.code, secret, c.digest)
						return
					}
					inner.ServeHTTP(w, r)
				})
			}))
			index := mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: empty.Image})
			ref, err := name.ParseReference(host + "/disks/debian:many")
			assert.NoError(t, err)
			assert.NoError(t, remote.WriteIndex(ref, index))
			isPushed.Store(true)
			want, err := index.Digest()
			assert.NoError(t, err)
			policy := image.Policy{PlainHTTP: []string{host}}
			if c.isNamed {
				policy.Hosts = []string{"127.0.0.1"}
			}
			sources, err := image.NewSources(policy)
			assert.NoError(t, err)
			got, err := sources.Resolve(t.Context(), source.Parse("oci://"+ref.String()))
			switch {
			case c.says == "" && (err != nil || got != want.String()):
				t.Errorf("the digest is %q, %v, want %s", got, err, want)
			case c.says != "" && (err == nil || got != "" || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), secret)):
				t.Errorf("the digest is %q, with the error %v, want %q", got, err, c.says)
			}
		})
	}
}

// answerManifest answers with a code and a text or, if there is a digest, as if a manifest had it.
func answerManifest(w http.ResponseWriter, code int, text, digest string) {
	if digest == "" {
		http.Error(w, text, code)
		return
	}
	for key, value := range map[string]string{"Docker-Content-Digest": digest, "Content-Type": string(mediatypes.OCIImageIndex), "Content-Length": "2"} {
		w.Header().Set(key, value)
	}
}
