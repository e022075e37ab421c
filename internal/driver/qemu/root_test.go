// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// wantRefused checks that the image is refused, with a message that has all texts.
func wantRefused(t *testing.T, s driver.Server, says ...string) {
	t.Helper()
	if s.Refused == nil || s.Refused.Field != "image" || s.Refused.Reason != driver.ReasonImageImmutable {
		t.Errorf("refused is %+v, want image, by %s", s.Refused, driver.ReasonImageImmutable)
		return
	}
	for _, text := range says {
		assert.True(t, strings.Contains(s.Refused.Message, text), "it is refused by %q, want %q in it", s.Refused.Message, text)
	}
}

// TestImageStays checks that another image changes nothing of a machine that has a disk,
// through a crash, stops, starts and a restart. All else of the spec is applied.
func TestImageStays(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 1 << 20}}
	boots(t, d, spec, "drover guest 1 A")
	kept := spec.Image
	spec.Image = driver.Image{Source: e.images + "/none", PullPolicy: driver.PullAlways}
	spec.MemoryBytes, spec.RootDiskBytes, spec.Volumes[0].SizeBytes = 32<<20, 4<<20, 2<<20
	s := reach(t, d, spec, driver.StateRunning)
	wantRefused(t, s, "spec.image is "+e.images+"/none", "stands on "+e.plain, "put that back", "delete the VirtualMachine")
	assert.True(t, slices.Equal(s.Pending, []string{"resource.memory"}) && s.Applied.RootDiskBytes == 4<<20, "it is %+v", s)
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
	waitExit(t, d, spec.UID)
	d = e.open(t)
	s = boots(t, d, spec, "drover guest 2 A")
	wantRefused(t, s)
	assert.True(t, s.Applied.MemoryBytes == 32<<20, "started again it is %+v", s)
	restart(t, d, spec, "drover guest 3 A")
	wantRefused(t, off(t, d, spec))
	boots(t, d, spec, "drover guest 4 A")
	spec.Image = kept
	s = reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Refused == nil && len(s.Pending) == 0, "with the image put back it is %+v", s)
}

// TestNothingIsFetched checks that neither the image of an existing disk nor a refused
// one is requested from any server, whatever the pull policy.
func TestNothingIsFetched(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	var asked atomic.Int32
	files := http.FileServer(http.Dir(e.images))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		files.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	spec := e.spec()
	spec.Image = driver.Image{Source: web.URL + "/boot-A0.img", PullPolicy: driver.PullAlways}
	boots(t, d, spec, "drover guest 1 A")
	d = e.openUnchecked(t) // which does not know what was fetched for this server
	restart(t, d, spec, "drover guest 2 A")
	spec.Image.Source = web.URL + "/boot-B0.img"
	restart(t, d, spec, "drover guest 3 A")
	wantRefused(t, reach(t, d, spec, driver.StateRunning), web.URL+"/boot-B0.img", "with the checksum "+checksumOf(t, e.plain))
	n := asked.Load()
	assert.True(t, n == 1, "the web server was asked %d times, want once", n)
}

// TestNameOfImageLasts checks that a name which stood for the image of a disk when the
// spec first had it means the same image later, when it stands for another.
func TestNameOfImageLasts(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	d := e.openUnchecked(t)
	assert.NoError(t, os.Link(e.plain, e.images+"/latest.img"))
	web := e.web(t)
	spec, other := e.spec(), e.spec()
	spec.Image.Source = web + "/boot-A0.img"
	other.Image.Source, other.Power = web+"/latest.img", driver.PowerOff
	reach(t, d, spec, driver.StateRunning)
	reach(t, d, other, driver.StateStopped)
	spec.Image = driver.Image{Source: web + "/latest.img"}
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Refused == nil, "the same image under another name is refused: %+v", s.Refused)
	assert.NoError(t, errors.Join(os.Remove(e.images+"/latest.img"), os.Link(e.other, e.images+"/latest.img")))
	gone(t, d, other)
	other.Image.PullPolicy = driver.PullAlways
	reach(t, d, other, driver.StateStopped)
	d = e.openUnchecked(t)
	s = reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Refused == nil, "a name that stands for another image now is refused: %+v", s.Refused)
	spec.Image.Checksum = checksumOf(t, e.other)
	wantRefused(t, reach(t, d, spec, driver.StateRunning), checksumOf(t, e.other), checksumOf(t, e.plain))
}

// TestFirstDisk checks that a machine without a root disk may get one.
func TestFirstDisk(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.linuxSpec(t)
	pause(t, d, spec) // its guest need not boot
	spec.Image.Source = e.plain
	s := pause(t, d, spec)
	assert.True(t, s.Refused == nil && slices.Equal(s.Pending, []string{"image"}), "before the restart it is %+v", s)
	off := spec
	off.Power, off.StopBy = driver.PowerOff, d.Host.Clock.Now()
	reach(t, d, off, driver.StateStopped)
	spec.Image.Kernel = nil
	boots(t, d, spec, "drover guest 1 A")
	spec.Image.Source = e.other
	wantRefused(t, reach(t, d, spec, driver.StateRunning))
}
