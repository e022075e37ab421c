// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/vmtest"
)

// TestWebImage checks that a server is pending while its image is fetched, that a Delete
// ends the fetch, and that the next server boots what was fetched.
func TestWebImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	content, err := os.ReadFile(e.plain)
	must(t, err)
	gate := make(chan struct{})
	begun := make(chan struct{}, 10)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-gate:
			_, _ = w.Write(content)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(web.Close)
	spec := e.spec()
	spec.Image = driver.Image{Source: web.URL + "/boot.img", Checksum: fmt.Sprintf("sha256:%x", sha256.Sum256(content))}
	for range 2 {
		s, err := d.Ensure(t.Context(), spec)
		must(t, err)
		if s.State != driver.StatePending || !strings.Contains(s.Progress, "fetching "+web.URL) || s.Name != spec.Name {
			t.Errorf("it is %+v", s)
		}
	}
	listed, err := d.List(t.Context(), spec.UID)
	must(t, err)
	if len(listed) != 1 || listed[0].State != driver.StatePending || listed[0].Namespace != spec.Namespace {
		t.Errorf("listed: %+v", listed)
	}
	<-begun
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound)
	if listed, err = d.List(t.Context()); err != nil || len(listed) != 0 {
		t.Errorf("listed: %+v, %v", listed, err)
	}
	leavesNothing(t, d)
	close(gate)
	boots(t, d, spec, "drover guest 1 A")

	// A volume of another image is fetched at the restart that is to attach it.
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &spec.Image}}
	spec.RestartRun = reach(t, e.open(t), spec, driver.StateRunning).Run
	reach(t, e.open(t), spec, driver.StateRunning)
	gone(t, d, spec)
}

// TestRestartWithBadParts checks that a guest keeps running if the parts for its restart
// cannot be had.
func TestRestartWithBadParts(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	web := e.web(t)
	none, big := &driver.Image{Source: e.images + "/none"}, &driver.Image{Source: e.big(t)}
	spec := e.spec()
	first := reach(t, d, spec, driver.StateRunning)
	spec.RestartRun, spec.StopBy = first.Run, time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		change func(*driver.ServerSpec)
		kind   error
		says   string
	}{
		"disk":   {func(s *driver.ServerSpec) { s.Volumes = []driver.Volume{{Name: "x", SizeBytes: 2 << 20, Image: big}} }, driver.ErrInvalid, "needs 5242880"},
		"kernel": {func(s *driver.ServerSpec) { s.Image.Kernel = &driver.Kernel{Source: none.Source} }, driver.ErrRetry, "no such file"},
		"volume": {func(s *driver.ServerSpec) { s.Volumes = []driver.Volume{{Name: "x", SizeBytes: 1 << 20, Image: none}} }, driver.ErrRetry, "no such file"},
		"checksum": {func(s *driver.ServerSpec) {
			s.Volumes = []driver.Volume{{Name: "x", SizeBytes: 2 << 20, Image: &driver.Image{Source: web + "/boot-A0.img", Checksum: "sha256:" + strings.Repeat("0", 64)}}}
		}, driver.ErrRetry, "its checksum is sha256:"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := spec
			c.change(&bad)
			wantError(t, d.waitFor(t, bad), c.kind, c.says)
			listed, err := d.List(t.Context(), spec.UID)
			must(t, err)
			if len(listed) != 1 || listed[0].State != driver.StateRunning || listed[0].Run != first.Run {
				t.Errorf("listed: %+v", listed)
			}
		})
	}
	gone(t, d, spec)
}

// TestRestartFetchesFirst checks that a guest keeps running while the image of its next
// run is fetched, which happens once.
func TestRestartFetchesFirst(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	gate := make(chan struct{})
	var asked atomic.Int32
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		select {
		case <-gate:
			http.ServeFile(w, r, e.other)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(web.Close)
	spec := e.spec()
	first := boots(t, d, spec, "drover guest 1 A")
	spec.RestartRun, spec.StopBy = first.Run, time.Now().Add(time.Hour)
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: web.URL + "/boot.img", PullPolicy: driver.PullAlways}}}
	for range 2 {
		s, err := d.Ensure(t.Context(), spec)
		must(t, err)
		if s.State != driver.StateRunning || s.Run != first.Run || !strings.Contains(s.Progress, "fetching "+web.URL) {
			t.Errorf("it is %+v", s)
		}
	}
	close(gate)
	vmtest.Eventually(t, patience, "it is restarted", func() error {
		s, err := d.Ensure(t.Context(), spec)
		if err == nil && (s.State != driver.StateRunning || s.Run == first.Run) {
			err = stateError(s)
		}
		return err
	})
	serial(t, d, spec, "drover guest 2 A")
	if n := asked.Load(); n != 1 {
		t.Errorf("it was fetched %d times", n)
	}
	gone(t, d, spec)
}

// TestWrongChecksum checks that a wrong checksum is reported and shown by List, and that
// nothing is made.
func TestWrongChecksum(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.open(t)
	web := e.web(t)
	spec := e.spec()
	spec.Image = driver.Image{Source: web + "/boot-A0.img", Checksum: "sha256:" + strings.Repeat("0", 64)}
	err := d.waitFor(t, spec)
	wantError(t, err, driver.ErrRetry, "its checksum is sha256:", driver.ReasonImageUnavailable)
	listed, err := d.List(t.Context(), spec.UID)
	must(t, err)
	if len(listed) != 1 || listed[0].State != driver.StatePending || listed[0].Err == nil {
		t.Errorf("listed: %+v", listed)
	}
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound)
	leavesNothing(t, d)
}

// waitFor repeats Ensure until it fails.
func (d *Driver) waitFor(t *testing.T, spec driver.ServerSpec) error {
	t.Helper()
	for {
		if _, err := d.Ensure(t.Context(), spec); err != nil {
			return err
		}
		if !proc.Pause(t.Context(), proc.PollEvery) {
			return errors.New("Ensure does not fail")
		}
	}
}

// TestContainerDisk boots what KubeVirt's users have in their registries, and checks that
// it still boots when the registry has something else under that name.
func TestContainerDisk(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	d := e.openFor(t, server.Listener.Addr().String())
	reference := strings.TrimPrefix(server.URL, "http://") + "/disks/boot:1"
	pushDisk(t, reference, e.plain)
	spec := e.spec()
	spec.Image = driver.Image{Source: "oci://" + reference, PullPolicy: driver.PullAlways}
	first := boots(t, d, spec, "drover guest 1 A")
	if want := checksumOf(t, e.plain); first.ImageID != want || listed(t, d, spec).ImageID != want {
		t.Errorf("its image is %s, listed %s, want %s", first.ImageID, listed(t, d, spec).ImageID, want)
	}

	pushDisk(t, reference, e.other)
	other := e.spec()
	other.Image = spec.Image
	if s := boots(t, d, other, "drover guest 1 B"); s.ImageID != checksumOf(t, e.other) {
		t.Errorf("its image is %s", s.ImageID)
	}

	off := spec
	off.Power = driver.PowerOff
	if s := reach(t, d, off, driver.StateStopped); s.ImageID != first.ImageID {
		t.Errorf("its image is %s, and was %s", s.ImageID, first.ImageID)
	}
	boots(t, d, spec, "drover guest 2 A")
	gone(t, d, spec)
	gone(t, d, other)
}

// listed returns the one server of a UID, as List shows it.
func listed(t *testing.T, d *Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	all, err := d.List(t.Context(), spec.UID)
	must(t, err)
	if len(all) != 1 {
		t.Fatalf("listed: %+v", all)
	}
	return all[0]
}

// TestRegistryStalls checks that a registry which stops answering ends the fetch, and
// that nothing of it is left.
func TestRegistryStalls(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{"ping": "/v2/", "index": "/manifests/", "layer": "/blobs/"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			var stalls atomic.Bool
			inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !stalls.Load() || !strings.Contains(r.URL.Path, part) {
					inner.ServeHTTP(w, r)
					return
				}
				if part == "/blobs/" {
					inner.ServeHTTP(&halfway{ResponseWriter: w}, r)
				}
				<-r.Context().Done()
			}))
			t.Cleanup(server.Close)
			d := e.openFor(t, server.Listener.Addr().String())
			d.fetches.Stall = time.Second
			reference := strings.TrimPrefix(server.URL, "http://") + "/disks/boot:1"
			pushDisk(t, reference, e.plain)
			spec := e.spec()
			spec.Image = driver.Image{Source: "oci://" + reference}
			stalls.Store(true)
			wantError(t, d.waitFor(t, spec), driver.ErrRetry, reference, "no progress for 1s", driver.ReasonImageUnavailable)
			leavesNothing(t, d)
			stalls.Store(false)
			boots(t, d, spec, "drover guest 1 A")
			gone(t, d, spec)
		})
	}
}

// halfway passes only the beginning of an answer.
type halfway struct {
	http.ResponseWriter

	sent int
}

func (h *halfway) Write(p []byte) (int, error) {
	const begin = 100
	n := min(len(p), begin-h.sent)
	h.sent += n
	if _, err := h.ResponseWriter.Write(p[:n]); err != nil {
		return 0, err
	}
	h.ResponseWriter.(http.Flusher).Flush()
	return len(p), nil
}

func pushDisk(t *testing.T, reference, path string) {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	must(t, w.WriteHeader(&tar.Header{Name: "disk/boot.img", Mode: 0o440, Size: int64(len(content)), Typeflag: tar.TypeReg}))
	_, err = w.Write(content)
	must(t, errors.Join(err, w.Close()))
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(archive.Bytes())), nil })
	must(t, err)
	image, err := mutate.AppendLayers(empty.Image, layer)
	must(t, err)
	ref, err := name.ParseReference(reference)
	must(t, err)
	must(t, remote.Write(ref, image))
}
