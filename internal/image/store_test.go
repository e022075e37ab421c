// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package image_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
	"cloudnative.tw/drover/internal/driver/statedir"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/vmtest"
)

const patience = time.Minute

// disk returns a raw disk of 1 MiB.
func disk() []byte {
	content := bytes.Repeat([]byte("drover! "), 1<<17)
	copy(content[510:], "\x55\xaa")
	return content
}

func checksum(content []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(content)) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newStore returns a store that may contact the test's own servers, and the given
// registries without TLS.
func newStore(t *testing.T, plain ...string) *image.Store {
	t.Helper()
	dir, err := statedir.Open("the test's folder", t.TempDir(), "cache")
	must(t, err)
	// A fetch ends a moment after its image is there.
	t.Cleanup(func() {
		vmtest.Eventually(t, patience, "all fetches have ended", func() error {
			left, err := os.ReadDir(dir.Path("tmp"))
			if err == nil && len(left) != 0 {
				err = fmt.Errorf("left behind: %v", left)
			}
			return err
		})
	})
	s := &image.Store{Dir: dir, Sub: "cache", Clock: clock.RealClock{}, Fetches: &download.Tracker{
		Clock: clock.RealClock{}, Stall: patience, Notify: func(...types.UID) {},
	}}
	allow(t, s, image.Policy{Hosts: []string{"127.0.0.1"}, PlainHTTP: plain})
	return s
}

// allow makes a store fetch what a policy allows.
func allow(t *testing.T, s *image.Store, p image.Policy) {
	t.Helper()
	sources, err := image.NewSources(p)
	must(t, err)
	s.Sources = sources
}

func serve(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return server.URL + "/disk.img"
}

// TestMain makes the web servers of tests trusted, which all have the same certificate.
func TestMain(m *testing.M) {
	server := httptest.NewTLSServer(nil)
	server.Close()
	trusted, err := os.CreateTemp("", "drover-test-*.pem")
	if err == nil {
		err = errors.Join(pem.Encode(trusted, &pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), trusted.Close(),
			os.Setenv("SSL_CERT_FILE", trusted.Name()))
	}
	if err != nil {
		panic(err)
	}
	code := m.Run()
	_ = os.Remove(trusted.Name())
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
			err := wait(t, s, someone(), driver.Image{Source: from, Checksum: checksum(content)})
			if c.says == "" {
				must(t, err)
				return
			}
			if !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), from+" redirects to "+to) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got the error %v", err)
			}
			clean(t, s, 0)
		})
	}
	around := serve(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/again", http.StatusFound) })
	if err := wait(t, newStore(t), someone(), driver.Image{Source: around, Checksum: checksum(content)}); err == nil || !strings.Contains(err.Error(), "more than 10 times") {
		t.Errorf("got the error %v", err)
	}
}

func someone() driver.ServerSpec {
	return driver.ServerSpec{Target: driver.Target{UID: uuid.NewUUID()}, Namespace: "default", Name: "vm"}
}

// wait repeats Wait until the image is there or there is an error.
func wait(t *testing.T, s *image.Store, who driver.ServerSpec, images ...driver.Image) error {
	t.Helper()
	var got error
	vmtest.Eventually(t, patience, "the fetch ends", func() error {
		var waits bool
		if waits, got = s.Wait(t.Context(), who, images...); waits {
			return errors.New(s.Fetches.Progress(who.UID))
		}
		return nil
	})
	return got
}

// clean checks that nothing unfinished is left.
func clean(t *testing.T, s *image.Store, images int) {
	t.Helper()
	left, err := os.ReadDir(s.Dir.Path("tmp"))
	must(t, err)
	if len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	have, err := s.List()
	must(t, err)
	if len(have) != images {
		t.Errorf("the store has %v, want %d", have, images)
	}
}

// TestOnce checks that many servers that need one image fetch it once.
func TestOnce(t *testing.T) {
	t.Parallel()
	content := disk()
	var asked atomic.Int32
	gate := make(chan struct{})
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		<-gate
		_, _ = w.Write(content)
	})
	s := newStore(t)
	told := make(chan types.UID, 100)
	s.Fetches.Notify = func(uids ...types.UID) {
		for _, uid := range uids {
			told <- uid
		}
	}
	image := driver.Image{Source: url, Checksum: checksum(content)}
	var who []driver.ServerSpec
	for range 5 {
		spec := someone()
		who = append(who, spec)
		if waits, err := s.Wait(t.Context(), spec, image); !waits || err != nil {
			t.Fatalf("got %v and error %v", waits, err)
		}
	}
	pending := s.Fetches.PendingServers()
	if len(pending) != 5 || pending[0].State != driver.StatePending || !strings.Contains(pending[0].Progress, "fetching "+url) || pending[0].Name != "vm" {
		t.Errorf("pending are %+v", pending)
	}
	close(gate)
	waitsFor := map[types.UID]bool{}
	for len(waitsFor) < 5 {
		waitsFor[<-told] = true
	}
	for _, spec := range who {
		must(t, wait(t, s, spec, image))
	}
	nobodyWaits(t, s, who)
	path, there := s.Path(image)
	got, err := os.ReadFile(path)
	if !there || err != nil || !bytes.Equal(got, content) {
		t.Errorf("the image is not what was served: %v %v", there, err)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
	clean(t, s, 1)
}

// nobodyWaits checks that what is pending after a fetch does nothing but wait to be used,
// and that it is used then. A fetch ends a moment after its image is there.
func nobodyWaits(t *testing.T, s *image.Store, who []driver.ServerSpec) {
	t.Helper()
	vmtest.Eventually(t, patience, "nothing is done for those who wait", func() error {
		for _, p := range s.Fetches.PendingServers() {
			if p.Progress != "" || p.Err != nil {
				return fmt.Errorf("pending is %+v", p)
			}
		}
		return nil
	})
	for _, spec := range who {
		s.Fetches.ReleaseExcept(spec.UID)
	}
	if left := s.Fetches.PendingServers(); len(left) != 0 {
		t.Errorf("once all have used it, pending are %v", left)
	}
}

func TestFailures(t *testing.T) {
	t.Parallel()
	content := disk()
	for name, c := range map[string]struct {
		serve    http.HandlerFunc
		checksum string
		says     string
	}{
		"not there":      {http.NotFound, checksum(content), "404"},
		"another image":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) }, checksum([]byte("x")), "its checksum is " + checksum(content)},
		"text":           {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }, checksum([]byte("hello")), "no disk image"},
		"cut off":        {cutOff(content), checksum(content), "it was cut off"},
		"stalls":         {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, checksum(content), "no progress for"},
		"stalls midway":  {stall(content), checksum(content), "no progress for"},
		"nobody listens": {nil, checksum(content), "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url := "http://127.0.0.1:1/disk.img"
			if c.serve != nil {
				url = serve(t, c.serve)
			}
			s, who := newStore(t), someone()
			if strings.Contains(name, "stalls") {
				s.Fetches.Stall = 200 * time.Millisecond
			}
			image := driver.Image{Source: url, Checksum: c.checksum}
			err := wait(t, s, who, image)
			if !errors.Is(err, driver.ErrRetry) || driver.ReasonOf(err) != driver.ReasonImageUnavailable || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got the error %v, want %q", err, c.says)
			}
			if p := s.Fetches.PendingServers(who.UID); len(p) != 1 || p[0].Err == nil {
				t.Errorf("pending is %+v, want it with the error", p)
			}
			if waits, err := s.Wait(t.Context(), who, image); !waits || err != nil {
				t.Errorf("the next call begins no new fetch: %v %v", waits, err)
			}
			must(t, s.Fetches.Abandon(t.Context(), who.UID))
			clean(t, s, 0)
		})
	}
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

// TestAbandon checks that a fetch ends when its last waiting server leaves, and not
// before.
func TestAbandon(t *testing.T) {
	t.Parallel()
	begun := make(chan context.Context, 10)
	url := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		begun <- r.Context()
		<-r.Context().Done()
	})
	s, one, two := newStore(t), someone(), someone()
	image := driver.Image{Source: url, Checksum: checksum(nil)}
	for _, who := range []driver.ServerSpec{one, two} {
		_, err := s.Wait(t.Context(), who, image)
		must(t, err)
	}
	request := <-begun
	must(t, s.Fetches.Abandon(t.Context(), one.UID))
	if request.Err() != nil || len(s.Fetches.PendingServers()) != 1 {
		t.Errorf("the fetch ended while one waits for it: %v", s.Fetches.PendingServers())
	}
	must(t, s.Fetches.Abandon(t.Context(), two.UID))
	<-request.Done()
	clean(t, s, 0)
}

// TestNever checks that an image which may not be fetched is used if it is there.
func TestNever(t *testing.T) {
	t.Parallel()
	content := disk()
	url := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })
	s, who := newStore(t), someone()
	image := driver.Image{Source: url, Checksum: checksum(content), PullPolicy: driver.PullNever}
	if _, err := s.Wait(t.Context(), who, image); !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), "pullPolicy is Never") {
		t.Errorf("got the error %v", err)
	}
	image.PullPolicy = ""
	must(t, wait(t, s, who, image))
	image.PullPolicy = driver.PullNever
	must(t, wait(t, s, who, image))
}

func TestCheck(t *testing.T) {
	t.Parallel()
	good := checksum(nil)
	sources, err := image.NewSources(image.Policy{PlainHTTP: []string{"plain:5000"}})
	must(t, err)
	for name, c := range map[string]struct {
		image driver.Image
		kind  error
	}{
		"a file":                 {driver.Image{Source: "/x.img"}, nil},
		"a file, checksum":       {driver.Image{Source: "/x.img", Checksum: good}, driver.ErrUnsupported},
		"web":                    {driver.Image{Source: "https://x/y", Checksum: good}, nil},
		"web, unchecked":         {driver.Image{Source: "https://x/y"}, nil},
		"web, bad checksum":      {driver.Image{Source: "http://x/y", Checksum: "md5:1"}, driver.ErrInvalid},
		"registry":               {driver.Image{Source: "oci://x/y"}, nil},
		"registry and checksum":  {driver.Image{Source: "oci://x/y", Checksum: good}, nil},
		"plain, unchecked":       {driver.Image{Source: "oci://plain:5000/y:1"}, nil},
		"plain, PLAIN unchecked": {driver.Image{Source: "oci://PLAIN:5000/y:1"}, nil},
		"plain and checksum":     {driver.Image{Source: "oci://plain:5000/y:1", Checksum: good}, nil},
		"plain, by digest":       {driver.Image{Source: "oci://plain:5000/y@" + good}, nil},
	} {
		if err := image.Check("image", c.image); !errors.Is(err, c.kind) {
			t.Errorf("%s: got the error %v, want %v", name, err, c.kind)
		}
		if got := sources.IsUnchecked(c.image); got != strings.Contains(name, "unchecked") {
			t.Errorf("%s: it counts as unchecked: %v", name, got)
		}
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
		image := driver.Image{Source: url}
		must(t, wait(t, s, someone(), image))
		path, _ := s.Path(image)
		info, err := os.Stat(path)
		must(t, err)
		files, sources = append(files, info), append(sources, url)
	}
	if !os.SameFile(files[0], files[1]) || !files[0].ModTime().Equal(files[1].ModTime()) {
		t.Errorf("it was replaced: %v, %v", files[0], files[1])
	}
	clean(t, s, 1)
	have, err := s.List()
	must(t, err)
	slices.Sort(sources)
	if i := have[0]; i.Digest != checksum(content) || i.Size != int64(len(content)) || i.FetchedAt.IsZero() || !slices.Equal(i.Sources, sources) {
		t.Errorf("the store tells %+v, want the sources %q", i, sources)
	}
}

// TestPrune checks that pruning waits for disks that are being made, that others wait for
// it, and that a removed image is fetched again.
func TestPrune(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	var kept, removed image.StoredImage
	images := map[string]driver.Image{}
	for i := range 2 {
		content := append(disk(), make([]byte, 512*i)...)
		image := driver.Image{Source: serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })}
		must(t, wait(t, s, someone(), image))
		images[checksum(content)] = image
	}
	have, err := s.List()
	must(t, err)
	kept, removed = have[0], have[1]
	used := func() (map[string]bool, error) {
		_, err := s.Hold()
		if !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), "being pruned") {
			t.Errorf("a disk could be made meanwhile: %v", err)
		}
		return map[string]bool{kept.Name: true}, nil
	}

	release, err := s.Hold()
	must(t, err)
	cut, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Prune(cut, used); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it did not wait: %v", err)
	}
	release()
	if _, err := s.Prune(t.Context(), func() (map[string]bool, error) { return nil, io.ErrNoProgress }); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("got the error %v", err)
	}
	clean(t, s, 2)
	pruned, err := s.Prune(t.Context(), used)
	must(t, err)
	if len(pruned) != 1 || pruned[0].Name != removed.Name {
		t.Errorf("it removed %+v, want %+v", pruned, removed)
	}
	clean(t, s, 1)
	for digest, there := range map[string]bool{kept.Digest: true, removed.Digest: false} {
		if _, got := s.Path(images[digest]); got != there {
			t.Errorf("%s is there: %v", digest, got)
		}
	}
	must(t, wait(t, s, someone(), images[removed.Digest]))
	clean(t, s, 2)
}

// archive returns a tar archive of one file.
func archive(t *testing.T, path string, content []byte) []byte {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	must(t, w.WriteHeader(&tar.Header{Name: path, Mode: 0o440, Size: int64(len(content)), Typeflag: tar.TypeReg}))
	_, err := w.Write(content)
	must(t, errors.Join(err, w.Close()))
	return archive.Bytes()
}

// compressed returns a layer of an archive.
func compressed(t *testing.T, archive []byte) v1.Layer {
	t.Helper()
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive)), nil })
	must(t, err)
	return layer
}

// plain returns a layer of an archive whose blob is the archive itself.
func plain(archive []byte) v1.Layer { return static.NewLayer(archive, mediatypes.OCIUncompressedLayer) }

// push puts an image into a registry of the test's own. Its answers go through
// around.
func push(t *testing.T, around func(http.Handler) http.Handler, layers ...v1.Layer) string {
	t.Helper()
	server := httptest.NewServer(around(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	t.Cleanup(server.Close)
	return pushTo(t, strings.TrimPrefix(server.URL, "http://"), layers...)
}

// pushTo puts an image into a registry.
func pushTo(t *testing.T, host string, layers ...v1.Layer) string {
	t.Helper()
	reference := host + "/disks/debian:12"
	image, err := mutate.AppendLayers(empty.Image, layers...)
	must(t, err)
	ref, err := name.ParseReference(reference)
	must(t, err)
	must(t, remote.Write(ref, image))
	return "oci://" + reference
}

// hostOf returns the registry of a source.
func hostOf(source string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(source, "oci://"), "/")
	return host
}

// honest leaves a registry as it is.
func honest(inner http.Handler) http.Handler { return inner }

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

// TestRegistryFails checks that a blob which cannot be had, or does not match its digest,
// is reported as such, in the layer of the disk and in others.
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
		"disk was changed":      {replace("drover! ", "tamper! "), "it is not what its digest says"},
		"layer below changed":   {replace("below the disk", "above the disk"), "it is not what its digest says"},
		"layer above changed":   {replace("over the disk", "next the disk"), "it is not what its digest says"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			image := driver.Image{Source: push(t, blobs(c.answer),
				plain(archive(t, "below", []byte("below the disk"))), plain(archive(t, "disk/debian.img", disk())), plain(archive(t, "over", []byte("over the disk"))))}
			s := newStore(t, hostOf(image.Source))
			err := wait(t, s, someone(), image)
			if !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got the error %v, want %q", err, c.says)
			}
			if _, there := s.Path(image); there {
				t.Error("the image is there")
			}
			clean(t, s, 0)
		})
	}
}

// TestSlowLayer checks that a layer which takes longer than a fetch may stall does not
// count as a stall, even if nothing of it is used.
func TestSlowLayer(t *testing.T) {
	t.Parallel()
	const pieces, pace = 30, 100 * time.Millisecond
	beside, content := archive(t, "etc/debian.img", []byte("no disk")), disk()
	slowly := func(w http.ResponseWriter, r *http.Request, blob []byte) {
		if !bytes.Equal(blob, beside) {
			_, _ = w.Write(blob)
			return
		}
		for piece := range slices.Chunk(blob, (len(blob)+pieces-1)/pieces) {
			_, _ = w.Write(piece)
			w.(http.Flusher).Flush()
			select {
			case <-time.After(pace):
			case <-r.Context().Done():
			}
		}
	}
	image := driver.Image{Source: push(t, blobs(slowly), plain(beside), plain(archive(t, "disk/debian.img", content)))}
	s := newStore(t, hostOf(image.Source))
	s.Fetches.Stall = pieces * pace / 2
	must(t, wait(t, s, someone(), image))
	path, _ := s.Path(image)
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
		t.Errorf("the disk is not what was pushed: %v", err)
	}
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
		"no disk image":    {map[string][]byte{"disk/a": []byte("hello")}, "no disk image"},
		"not in registry":  {nil, "the server answered 404 Not Found"},
		"no such registry": {nil, "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var layers []v1.Layer
			for path, content := range c.files {
				layers = append(layers, compressed(t, archive(t, path, content)))
			}
			source := push(t, honest, layers...)
			switch name {
			case "not in registry":
				source = strings.Replace(source, ":12", ":13", 1)
			case "no such registry":
				source = "oci://127.0.0.1:1/x"
			}
			s, who := newStore(t, hostOf(source)), someone()
			image := driver.Image{Source: source}
			err := wait(t, s, who, image)
			path, there := s.Path(image)
			if c.says != "" {
				if !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), c.says) || there {
					t.Errorf("got the error %v, want %q", err, c.says)
				}
				clean(t, s, 0)
				return
			}
			must(t, err)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, content) {
				t.Errorf("the disk is not what was pushed: %v", err)
			}
			clean(t, s, 1)
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
		name, letter, is := strings.Cut(entry, "=")
		header := tar.Header{Name: name, Mode: 0o555, Typeflag: tar.TypeReg}
		var content []byte
		switch {
		case is:
			content = lettered(letter)
		case strings.HasSuffix(name, "/"):
			header.Typeflag = tar.TypeDir
		}
		header.Size = int64(len(content))
		must(t, w.WriteHeader(&header))
		_, err := w.Write(content)
		must(t, err)
	}
	must(t, w.Close())
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
			image := driver.Image{Source: push(t, honest, all...)}
			s := newStore(t, hostOf(image.Source))
			err := wait(t, s, someone(), image)
			if len(c.want) > 1 {
				if !errors.Is(err, driver.ErrRetry) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got the error %v, want %q", err, c.want)
				}
				return
			}
			must(t, err)
			path, _ := s.Path(image)
			if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, lettered(c.want)) {
				t.Errorf("the disk is %.1q, %v, want %s", got, err, c.want)
			}
		})
	}
}

// TestAlways checks that the registry is queried each time, unless a checksum fixes the
// content.
func TestAlways(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	source := push(t, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.Contains(r.URL.Path, "/manifests/12") && r.Method == http.MethodGet {
				asked.Add(1)
			}
			inner.ServeHTTP(w, r)
		})
	}, compressed(t, archive(t, "disk/x", disk())))
	s := newStore(t, hostOf(source))
	for policy, want := range map[driver.PullPolicy]int32{driver.PullIfNotPresent: 1, driver.PullAlways: 2} {
		asked.Store(0)
		for range 2 {
			who := someone()
			must(t, wait(t, s, who, driver.Image{Source: source, PullPolicy: policy}))
			s.Fetches.ReleaseExcept(who.UID)
		}
		if got := asked.Load(); got > want || (policy == driver.PullAlways && got != want) {
			t.Errorf("%s asked the registry %d times, want %d", policy, got, want)
		}
	}
}

// TestAlwaysOfTwo checks that a server which needs two images fetched again gets both,
// once each.
func TestAlwaysOfTwo(t *testing.T) {
	t.Parallel()
	content := disk()
	var asked [2]atomic.Int32
	var images []driver.Image
	for n := range asked {
		url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			asked[n].Add(1)
			_, _ = w.Write(content)
		})
		images = append(images, driver.Image{Source: url, PullPolicy: driver.PullAlways})
	}
	s, who := newStore(t), someone()
	must(t, wait(t, s, who, images...))
	if first, second := asked[0].Load(), asked[1].Load(); first != 1 || second != 1 {
		t.Errorf("they were fetched %d and %d times, want each once", first, second)
	}
}

// TestForeignLock checks that a lock which another user has made is reported at once, and
// not at each machine.
func TestForeignLock(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	must(t, s.MakeLock())
	lock := s.Dir.Path("cache", "lock")
	must(t, os.Chmod(lock, 0))
	const nobody = 65534
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		_ = syscall.Setfsuid(nobody)
		result <- s.MakeLock()
	}()
	err := <-result
	if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), lock) || !strings.Contains(err.Error(), "chown") {
		t.Errorf("got the error %v", err)
	}
}
