// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	mediatypes "github.com/google/go-containerregistry/pkg/v1/types"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/folder"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// web serves the engine's images.
func (e *engine) web(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.FileServer(http.Dir(e.images)))
	t.Cleanup(server.Close)
	return server.URL
}

// openUnchecked returns a driver that takes images without a checksum.
func (e *engine) openUnchecked(t *testing.T) *Driver {
	t.Helper()
	o := e.options()
	o.UncheckedImages = true
	return openWith(t, o)
}

func checksumOf(t *testing.T, path string) string {
	t.Helper()
	return checksumOfContent([]byte(framework.ReadFile(t, path)))
}

func checksumOfContent(content []byte) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(content))
}

// restart ends the present run and waits for the next, whose guest is to print a text.
func restart(t *testing.T, d *Driver, spec driver.ServerSpec, prints string) {
	t.Helper()
	spec.StopBy = time.Now().Add(time.Hour)
	spec.RestartRun = listed(t, d, spec).Run
	boots(t, d, spec, prints)
}

// TestSameImage checks that an image under another name is the same image.
func TestSameImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	here, mirror := e.web(t), e.web(t)
	spec := e.spec()
	spec.Image.Source = here + "/boot-A0.img"
	boots(t, d, spec, "drover guest 1 A")
	sum := checksumOf(t, e.plain)
	for n, image := range []driver.Image{
		{Source: here + "/boot-A0.img", Checksum: sum},
		{Source: mirror + "/boot-A0.img", Checksum: sum},
		{Source: here + "/boot-A0.img"},
	} {
		spec.Image = image
		s := reach(t, d, spec, driver.StateRunning)
		assert.True(t, len(s.Pending) == 0 && s.Refused == nil, "with %+v pending are %v, refused is %+v", image, s.Pending, s.Refused)
		restart(t, d, spec, fmt.Sprintf("drover guest %d A", n+2))
	}
	for _, image := range []driver.Image{
		{Source: mirror + "/boot-B0.img", Checksum: checksumOf(t, e.other)},
		{Source: here + "/boot-A0.img", Checksum: checksumOf(t, e.other)},
		{Source: mirror + "/never-fetched.img"},
		{Source: e.plain},
	} {
		spec.Image = image
		s := reach(t, d, spec, driver.StateRunning)
		wantRefused(t, s, image.Source, image.Checksum, "stands on "+here+"/boot-A0.img with the checksum "+sum)
		assert.True(t, len(s.Pending) == 0, "with %+v pending are %v", image, s.Pending)
	}
}

// TestSameFile checks that both forms of a file's name mean the same image.
func TestSameFile(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	spec.Image.Source = "file://" + e.plain
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, len(s.Pending) == 0 && s.Refused == nil, "pending are %v, refused is %+v", s.Pending, s.Refused)
	restart(t, d, spec, "drover guest 2 A")
}

// off stops a machine, or creates one that is off.
func off(t *testing.T, d driver.Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	spec.Power = driver.PowerOff
	return reach(t, d, spec, driver.StateStopped)
}

// pause pauses a machine, or creates one whose guest has not booted yet.
func pause(t *testing.T, d driver.Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	spec.Power = driver.PowerPaused
	return reach(t, d, spec, driver.StatePaused)
}

// TestImageRestored checks that an image that was restored as a copy with the same times still counts
// as the base of the disk.
func TestImageRestored(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	content := framework.ReadFile(t, e.plain)
	info, err := os.Stat(e.plain)
	assert.NoError(t, err)
	assert.NoError(t, os.Rename(e.plain, e.plain+".old")) // which keeps its inode
	assert.NoError(t, os.WriteFile(e.plain, []byte(content), 0o600))
	assert.NoError(t, os.Chtimes(e.plain, info.ModTime(), info.ModTime()))
	boots(t, d, spec, "drover guest 2 A")
}

// TestCacheRemoved checks that a machine boots after the store was emptied, whatever its image's source has by then. An
// image that the machine has not kept is fetched again, but nothing else in its place.
func TestCacheRemoved(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	spec := e.spec()
	spec.Image.Source = e.web(t) + "/boot-A0.img"
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: e.web(t) + "/boot-B0.img"}}}
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	assert.NoError(t, os.RemoveAll(d.Host.StateDir.Path(cacheDir)))
	assert.NoError(t, os.Rename(e.plain, e.plain+".old"))
	assert.NoError(t, os.Link(e.other, e.plain))
	// A web server distinguishes files of the same size by their time only.
	assert.NoError(t, os.Chtimes(e.other, time.Unix(1, 0), time.Unix(1, 0)))
	never := spec
	never.Image.PullPolicy = driver.PullNever
	boots(t, d, never, "drover guest 2 A")
	off(t, d, spec)

	forget := func() {
		for _, kept := range d.keptBy(t, spec) {
			assert.NoError(t, os.Remove(kept))
		}
		assert.NoError(t, os.RemoveAll(d.Host.StateDir.Path(cacheDir)))
	}
	forget()
	wantError(t, d.waitFor(t, spec), driver.ErrRetry, "its checksum is "+checksumOf(t, e.other), driver.ReasonImageUnavailable)
	wantError(t, d.waitFor(t, never), driver.ErrRetry, "was not fetched before", driver.ReasonImageUnavailable)

	assert.NoError(t, os.Rename(e.plain+".old", e.plain))
	boots(t, d, spec, "drover guest 3 A")
	off(t, d, spec)
	path, exists := d.Host.Images.Path(disks.RefOf(spec.Image))
	if !exists || len(d.keptBy(t, spec)) != 2 {
		t.Fatalf("the image is in the store: %v; and the machine has %q", exists, d.keptBy(t, spec))
	}
	assert.NoError(t, errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 512))) // of the machine's, too
	refuses(t, d, spec, driver.ErrRetry, "truncated or changed in "+path, driver.ReasonImageUnavailable)
	assert.NoError(t, os.Remove(path))
	boots(t, d, spec, "drover guest 4 A")
}

// keptBy returns the files of the store that a machine uses.
func (d *Driver) keptBy(t *testing.T, spec driver.ServerSpec) []string {
	t.Helper()
	all, err := filepath.Glob(d.Host.InstanceOf(spec.UID).Machine.File("*"))
	assert.NoError(t, err)
	return slices.DeleteFunc(all, func(path string) bool { return !image.IsStored(filepath.Base(path)) })
}

// TestFolderMoved checks that machines are unchanged in a folder that was moved with the
// fetched images.
func TestFolderMoved(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Image = driver.Image{Source: e.web(t) + "/boot-A0.img", Checksum: checksumOf(t, e.plain)}
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	moved := e.dir + "-moved"
	assert.NoError(t, os.Rename(e.dir, moved))
	e.dir = moved
	d = e.open(t)
	boots(t, d, spec, "drover guest 2 A")
}

// TestVolumeImageChanged checks that nothing is pending for another image of a volume,
// since a volume is made once.
func TestVolumeImageChanged(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: e.plain}}}
	reach(t, d, spec, driver.StateRunning)
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: e.other}}}
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, len(s.Pending) == 0, "pending are %v", s.Pending)
	spec.Volumes[0].ReadOnly = true
	s = reach(t, d, spec, driver.StateRunning)
	assert.True(t, slices.Equal(s.Pending, []string{"volumes"}), "read-only: pending are %v", s.Pending)
}

// TestWebImage checks that servers are pending while their image is fetched, that they share the fetch,
// that a Delete ends it, and that the next server boots what was fetched.
func TestWebImage(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	content := framework.ReadFile(t, e.plain)
	gate := make(chan struct{})
	begun := make(chan struct{}, 10)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		select {
		case <-gate:
			_, _ = io.WriteString(w, content)
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(web.Close)
	spec := e.spec()
	spec.Image = driver.Image{Source: web.URL + "/boot.img", Checksum: checksumOf(t, e.plain)}
	for range 2 {
		s := ensure(t, d, spec)
		assert.True(t, s.State == driver.StatePending && strings.Contains(s.Progress, "fetching "+web.URL) && s.Name == spec.Name, "it is %+v", s)
	}
	listed, err := d.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, len(listed) == 1 && listed[0].State == driver.StatePending && listed[0].Namespace == spec.Namespace, "listed: %+v", listed)
	<-begun
	another := e.spec()
	another.Image = spec.Image
	ensure(t, d, another)
	for _, waiting := range []driver.ServerSpec{spec, another} {
		wantError(t, d.Delete(t.Context(), waiting.Target, false), driver.ErrNotFound)
	}
	listed, err = d.List(t.Context())
	assert.True(t, err == nil && len(listed) == 0 && len(begun) == 0, "listed: %+v, %v, after %d more fetches", listed, err, len(begun))
	leavesNothing(t, d)
	close(gate)
	boots(t, d, spec, "drover guest 1 A")

	// A volume of another image is fetched at the restart that is to attach it.
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &spec.Image}}
	spec.RestartRun = reach(t, e.open(t), spec, driver.StateRunning).Run
	reach(t, e.open(t), spec, driver.StateRunning)
}

// TestRestartWithBadParts checks that a guest keeps running if the parts for its restart
// are not available.
func TestRestartWithBadParts(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
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
		"disk":   {func(s *driver.ServerSpec) { s.Volumes = []driver.Volume{{Name: "x", SizeBytes: 2 << 20, Image: big}} }, driver.ErrInvalid, "needs 5Mi"},
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
			s := listed(t, d, spec)
			assert.True(t, s.State == driver.StateRunning && s.Run == first.Run, "s: %+v", s)
		})
	}
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
		s := ensure(t, d, spec)
		assert.True(t, s.State == driver.StateRunning && s.Run == first.Run && strings.Contains(s.Progress, "fetching "+web.URL), "it is %+v", s)
	}
	close(gate)
	assert.Eventually(t, "it is restarted", func(t testing.TB) error {
		s, err := d.Ensure(t.Context(), spec)
		if err == nil && (s.State != driver.StateRunning || s.Run == first.Run) {
			err = stateError(s)
		}
		return err
	})
	waitPrinted(t, d.Host.InstanceOf(spec.UID), "drover guest 2 A")
	n := asked.Load()
	assert.True(t, n == 1, "it was fetched %d times", n)
}

// waitFor repeats Ensure until it fails.
func (d *Driver) waitFor(t *testing.T, spec driver.ServerSpec) (failure error) {
	t.Helper()
	assert.Eventually(t, "Ensure fails", func(testing.TB) error {
		if _, failure = d.Ensure(t.Context(), spec); failure == nil {
			return errors.New("it does not")
		}
		return nil
	})
	return failure
}

// TestContainerDisk boots what KubeVirt's users have in their registries, and checks that
// it still boots when the registry has something else under that name.
func TestContainerDisk(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	host := framework.NewRegistry(t, nil)
	d := e.openFor(t, host)
	reference := host + "/disks/boot:1"
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
	assert.Equal(t, "its image", boots(t, d, other, "drover guest 1 B").ImageID, checksumOf(t, e.other))

	s := off(t, d, spec)
	assert.True(t, s.ImageID == first.ImageID, "its image is %s, and was %s", s.ImageID, first.ImageID)
	boots(t, d, spec, "drover guest 2 A")
}

// listed returns the one server of a UID, as List shows it.
func listed(t *testing.T, d *Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	all, err := d.List(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.Require(t, len(all) == 1, "listed: %+v", all)
	return all[0]
}

// TestRegistryStalls checks that a fetch ends if the registry stops answering, and that no files of
// the fetch are left.
func TestRegistryStalls(t *testing.T) {
	t.Parallel()
	for name, part := range map[string]string{"ping": "/v2/", "index": "/manifests/", "layer": "/blobs/", "layer that is converted": "/blobs/"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			var stalls atomic.Bool
			host := framework.NewRegistry(t, func(inner http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !stalls.Load() || !strings.Contains(r.URL.Path, part) {
						inner.ServeHTTP(w, r)
						return
					}
					if part == "/blobs/" {
						inner.ServeHTTP(&halfway{ResponseWriter: w}, r)
					}
					<-r.Context().Done()
				})
			})
			d := e.openFor(t, host)
			d.fetches.Stall = time.Second
			reference := host + "/disks/boot:1"
			pushDisk(t, reference, e.plain)
			spec := e.spec()
			spec.Image = driver.Image{Source: "oci://" + reference}
			if name == "layer that is converted" {
				spec.Image.Source = reference
			}
			stalls.Store(true)
			wantError(t, d.waitFor(t, spec), driver.ErrRetry, reference, "no progress for 1s", driver.ReasonImageUnavailable)
			leavesNothing(t, d)
			d.fetches.Stall = time.Hour
			stalls.Store(false)
			boots(t, d, spec, "drover guest 1 A")
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
	disk := framework.TarOf(t, "disk/boot.img", []byte(framework.ReadFile(t, path)))
	image, err := mutate.AppendLayers(empty.Image, static.NewLayer(disk, mediatypes.OCIUncompressedLayer))
	assert.NoError(t, err)
	framework.PushImage(t, reference, image)
}

// TestDriverError checks that errors of package image get their kind in the driver
// contract, and keep their text.
func TestDriverError(t *testing.T) {
	t.Parallel()
	for from, want := range map[error]struct {
		kind   error
		reason string
	}{
		image.ErrInvalid:     {driver.ErrInvalid, ""},
		image.ErrUnsupported: {driver.ErrUnsupported, ""},
		image.ErrUnavailable: {driver.ErrRetry, driver.ReasonImageUnavailable},
		image.ErrLocked:      {driver.ErrRetry, ""},
	} {
		err := disks.ContractError(fmt.Errorf("image x: %w", from))
		assert.True(t, errors.Is(err, want.kind) && err.Error() == "image x: "+from.Error() && driver.ReasonOf(err) == want.reason,
			"%v became %v, want %+v", from, err, want)
	}
	if err := disks.ContractError(fs.ErrExist); err != fs.ErrExist { //nolint:errorlint // the same, not wrapped
		t.Errorf("another error became %v", err)
	}
}

// TestUncheckedImage checks that an image of a web server needs a checksum unless the
// flag says otherwise. A machine made of one without a checksum keeps running without the
// flag.
func TestUncheckedImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	strict := e.open(t)
	lax := e.openUnchecked(t)
	web := e.web(t)
	spec := e.spec()
	spec.Image.Source = web + "/boot-A0.img"
	refuses(t, strict, spec, driver.ErrInvalid, "image.checksum is empty", "--qemu-unchecked-images")
	leavesNothing(t, strict)

	boots(t, lax, spec, "drover guest 1 A")
	off(t, strict, spec)
	reach(t, strict, spec, driver.StateRunning)
	changed := spec
	changed.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: web + "/boot-B0.img"}}}
	refuses(t, strict, changed, driver.ErrInvalid, "volumes[0].source.image.checksum is empty")
}

// TestCache checks that an image is kept while any disk is based on it, including disks of machines
// that are off, released, or of another cluster.
func TestCache(t *testing.T) {
	t.Parallel()
	assert.ErrorSays(t, "another folder", assert.ErrorOf(folder.Open(t.TempDir(), clock.RealClock{})), "is not a folder of the qemu driver")
	e := newEngine(t)
	o := e.options()
	o.UncheckedImages = true
	d := openWith(t, o)
	o.ClusterID = "cluster-2"
	other := openWith(t, o)
	web := e.web(t)
	specs := map[string]driver.ServerSpec{}
	for name, image := range map[string]string{"root": "/boot-A0.img", "volume": "/boot-B0.img", "theirs": "/boot-S1.img"} {
		spec := e.spec()
		spec.Name, spec.Power = name, driver.PowerOff
		spec.Image.Source = web + image
		if name == "volume" {
			spec.Image.Source = e.plain
			spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20, Image: &driver.Image{Source: web + image}}}
			spec.Power = driver.PowerOn
		}
		specs[name] = spec
	}
	reach(t, d, specs["root"], driver.StateStopped)
	reach(t, d, specs["volume"], driver.StateRunning)
	reach(t, other, specs["theirs"], driver.StateStopped)
	assert.NoError(t, d.Delete(t.Context(), specs["root"].Target, true))

	c, err := folder.Open(e.dir, clock.RealClock{})
	assert.NoError(t, err)
	wantUsers(t, c, "/boot-A0.img default/root", "/boot-B0.img default/volume", "/boot-S1.img default/theirs")
	removed, err := c.PruneImages(t.Context())
	assert.True(t, err == nil && len(removed) == 0, "it removed %+v, %v", removed, err)
	gone(t, other, specs["theirs"])
	wantUsers(t, c, "/boot-A0.img default/root", "/boot-B0.img default/volume", "/boot-S1.img")
	removed, err = c.PruneImages(t.Context())
	assert.True(t, err == nil && len(removed) == 1 && removed[0].Sources[0] == web+"/boot-S1.img", "it removed %+v, %v", removed, err)
	wantUsers(t, c, "/boot-A0.img default/root", "/boot-B0.img default/volume")

	record := d.Host.InstanceOf(specs["volume"].UID).Machine.File(instance.RecordFile)
	content := framework.ReadFile(t, record)
	assert.NoError(t, os.WriteFile(record, []byte("{"), 0o600))
	assert.ErrorSays(t, "beside a server that cannot be read", assert.ErrorOf(c.PruneImages(t.Context())), "repair "+record)
	assert.NoError(t, os.WriteFile(record, []byte(content), 0o600))
	specs["volume"] = withoutPower(specs["volume"])
	reach(t, d, specs["volume"], driver.StateStopped)
}

// TestOpenFolderCreatesNothing checks that root may list images where another user runs
// machines, and that there may be no images yet.
func TestOpenFolderCreatesNothing(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	e.open(t)
	lock := filepath.Join(e.dir, cacheDir, "lock")
	assert.ErrorIs(t, "the driver makes no lock", assert.ErrorOf(os.Stat(lock)), nil)
	for _, missing := range []string{lock, filepath.Dir(lock), filepath.Join(e.dir, instance.NotificationsDir)} {
		assert.NoError(t, os.Remove(missing))
		before := tree(t, e.dir)
		c, err := folder.Open(e.dir, clock.RealClock{})
		assert.NoError(t, err)
		wantUsers(t, c)
		removed, err := c.PruneImages(t.Context())
		assert.True(t, err == nil && len(removed) == 0, "it removed %+v, %v", removed, err)
		after := tree(t, e.dir)
		assert.True(t, slices.Equal(after, before), "there was %q, and is %q", before, after)
	}
}

// tree returns the paths of all files below a folder.
func tree(t *testing.T, dir string) []string {
	t.Helper()
	var all []string
	assert.NoError(t, filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		all = append(all, path)
		return err
	}))
	return all
}

func withoutPower(spec driver.ServerSpec) driver.ServerSpec {
	spec.Power, spec.StopBy = driver.PowerOff, time.Now()
	return spec
}

// wantUsers compares the sources' paths and the users of each.
func wantUsers(t *testing.T, c *folder.Folder, want ...string) {
	t.Helper()
	images, err := c.Images()
	assert.NoError(t, err)
	var got []string
	for _, i := range images {
		assert.Require(t, len(i.Sources) == 1, "the sources are %q", i.Sources)
		path := i.Sources[0][strings.LastIndex(i.Sources[0], "/"):]
		got = append(got, strings.Join(append([]string{path}, i.UsedBy...), " "))
	}
	slices.Sort(got)
	assert.True(t, slices.Equal(got, want), "the cache has %q, want %q", got, want)
}
