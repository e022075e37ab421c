// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
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
		if s := reach(t, d, spec, driver.StateRunning); len(s.Pending) != 0 || s.Refused != nil {
			t.Errorf("with %+v pending are %v, refused is %+v", image, s.Pending, s.Refused)
		}
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
		if len(s.Pending) != 0 {
			t.Errorf("with %+v pending are %v", image, s.Pending)
		}
	}
}

// TestSameFile checks that the two forms of a file's name mean one image.
func TestSameFile(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	spec.Image.Source = "file://" + e.plain
	if s := reach(t, d, spec, driver.StateRunning); len(s.Pending) != 0 || s.Refused != nil {
		t.Errorf("pending are %v, refused is %+v", s.Pending, s.Refused)
	}
	restart(t, d, spec, "drover guest 2 A")
}

// off stops a machine, or makes one that is off.
func off(t *testing.T, d driver.Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	spec.Power = driver.PowerOff
	return reach(t, d, spec, driver.StateStopped)
}

// pause pauses a machine, or makes one whose guest has yet to boot.
func pause(t *testing.T, d driver.Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	spec.Power = driver.PowerPaused
	return reach(t, d, spec, driver.StatePaused)
}

// TestImageRestored checks that an image which was restored by copying it with its times
// is the one that the disk was made on.
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

// TestCacheRemoved checks that a removed image of a disk is fetched again, but nothing
// else in its place.
func TestCacheRemoved(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	spec := e.spec()
	spec.Image.Source = e.web(t) + "/boot-A0.img"
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: e.web(t) + "/boot-B0.img"}}}
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	assert.NoError(t, os.RemoveAll(d.StateDir.Path(cacheDir)))
	assert.NoError(t, os.Rename(e.plain, e.plain+".old"))
	assert.NoError(t, os.Link(e.other, e.plain))
	// A web server distinguishes files of the same size by their time only.
	assert.NoError(t, os.Chtimes(e.other, time.Unix(1, 0), time.Unix(1, 0)))
	wantError(t, d.waitFor(t, spec), driver.ErrRetry, "its checksum is "+checksumOf(t, e.other), driver.ReasonImageUnavailable)
	never := spec
	never.Image.PullPolicy = driver.PullNever
	wantError(t, d.waitFor(t, never), driver.ErrRetry, "not among those that were fetched", driver.ReasonImageUnavailable)

	assert.NoError(t, os.Rename(e.plain+".old", e.plain))
	boots(t, d, spec, "drover guest 2 A")
	off(t, d, spec)
	path, exists := d.Images.Path(disks.RefOf(spec.Image))
	if !exists {
		t.Fatal("the image is not in the store")
	}
	assert.NoError(t, errors.Join(os.Chmod(path, 0o600), os.Truncate(path, 512)))
	refuses(t, d, spec, driver.ErrRetry, "cut off or changed in "+path, driver.ReasonImageUnavailable)
	assert.NoError(t, os.Remove(path))
	boots(t, d, spec, "drover guest 3 A")
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
	if s := reach(t, d, spec, driver.StateRunning); len(s.Pending) != 0 {
		t.Errorf("pending are %v", s.Pending)
	}
	spec.Volumes[0].ReadOnly = true
	if s := reach(t, d, spec, driver.StateRunning); !slices.Equal(s.Pending, []string{"volumes"}) {
		t.Errorf("read-only: pending are %v", s.Pending)
	}
}
