// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
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
		if !strings.Contains(s.Refused.Message, text) {
			t.Errorf("it is refused by %q, want %q in it", s.Refused.Message, text)
		}
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
	if !slices.Equal(s.Pending, []string{"resource.memory"}) || s.Applied.RootDiskBytes != 4<<20 {
		t.Errorf("it is %+v", s)
	}
	assert.NoError(t, d.InstanceOf(spec.UID).Kill(t.Context()))
	waitExit(t, d, spec.UID)
	d = e.open(t)
	s = boots(t, d, spec, "drover guest 2 A")
	wantRefused(t, s)
	if s.Applied.MemoryBytes != 32<<20 {
		t.Errorf("started again it is %+v", s)
	}
	restart(t, d, spec, "drover guest 3 A")
	wantRefused(t, off(t, d, spec))
	boots(t, d, spec, "drover guest 4 A")
	spec.Image = kept
	if s := reach(t, d, spec, driver.StateRunning); s.Refused != nil || len(s.Pending) != 0 {
		t.Errorf("with the image put back it is %+v", s)
	}
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
	if n := asked.Load(); n != 1 {
		t.Errorf("the web server was asked %d times, want once", n)
	}
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
	if s := reach(t, d, spec, driver.StateRunning); s.Refused != nil {
		t.Errorf("the same image under another name is refused: %+v", *s.Refused)
	}
	assert.NoError(t, errors.Join(os.Remove(e.images+"/latest.img"), os.Link(e.other, e.images+"/latest.img")))
	gone(t, d, other)
	other.Image.PullPolicy = driver.PullAlways
	reach(t, d, other, driver.StateStopped)
	d = e.openUnchecked(t)
	if s := reach(t, d, spec, driver.StateRunning); s.Refused != nil {
		t.Errorf("a name that stands for another image now is refused: %+v", *s.Refused)
	}
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
	if s := pause(t, d, spec); s.Refused != nil || !slices.Equal(s.Pending, []string{"image"}) {
		t.Errorf("before the restart it is %+v", s)
	}
	off := spec
	off.Power, off.StopBy = driver.PowerOff, d.Clock.Now()
	reach(t, d, off, driver.StateStopped)
	spec.Image.Kernel = nil
	boots(t, d, spec, "drover guest 1 A")
	spec.Image.Source = e.other
	wantRefused(t, reach(t, d, spec, driver.StateRunning))
}

// replacement is a machine whose root disk an older version was replacing.
type replacement struct {
	*instance.Instance
	d        *Driver
	old, new disks.Disk
}

// TestUnfinishedReplacement checks replacements of a root disk that an older version did
// not finish. Wherever it was interrupted, the old disk is back, and the new one stays
// once a run with it had begun.
func TestUnfinishedReplacement(t *testing.T) {
	t.Parallel()
	// Each step does what the older version had done by then, after the previous step.
	link := func(r *replacement) error {
		return os.Link(r.File(instance.RootDiskFile), r.File(instance.OldRootFile))
	}
	noRoot := func(r *replacement) error {
		r.Root, r.Old = disks.Disk{}, &r.old
		return r.Save()
	}
	rename := func(r *replacement) error { return os.Rename(r.File("new"), r.File(instance.RootDiskFile)) }
	newRoot := func(r *replacement) error {
		r.Root = r.new
		return r.Save()
	}
	starting := func(r *replacement) error {
		r.Phase, r.Run, r.Settings.Image = record.PhaseStarting, instance.NewID(), r.new.Image.ImageSettings
		return r.Save()
	}
	halted := func(r *replacement) error {
		lock, err := r.ClaimRun()
		disk, diskErr := os.OpenFile(r.File(instance.RootDiskFile), os.O_RDWR, 0)
		image, imageErr := os.Open(r.new.Image.Path)
		if err := errors.Join(err, diskErr, imageErr); err != nil {
			return err
		}
		files := &launch.Files{}
		defer files.Close()
		err = r.Start(t.Context(), r.Host.Program, launch.Config{
			Version: launch.Version,
			UUID:    string(r.UID), ID: r.ID, Type: "q35", Accel: machine.AccelTCG, CPUs: 1, MemoryBytes: 16 << 20,
			Root: &launch.Drive{FD: files.Add(disk), Backing: &launch.Layer{FD: files.Add(image), Format: diskimage.Raw}},
		}, files, lock)
		return errors.Join(err, lock.Close())
	}
	begun := func(r *replacement) error {
		err := r.Kill(t.Context())
		r.Phase, r.Old = record.PhaseOn, nil
		return errors.Join(err, r.Save())
	}
	// The old image was requested again: the previous disk is linked back.
	again := func(r *replacement) error {
		return errors.Join(noRoot(r), os.Remove(r.File(instance.RootDiskFile)), os.Link(r.File(instance.OldRootFile), r.File(instance.RootDiskFile)))
	}
	oldRoot := func(r *replacement) error {
		r.Root = r.old
		return r.Save()
	}
	// A restoration that was interrupted itself.
	removed := func(r *replacement) error { return errors.Join(noRoot(r), os.Remove(r.File(instance.RootDiskFile))) }
	type steps []func(*replacement) error
	e := newEngine(t)
	for name, c := range map[string]struct {
		done   steps
		prints string
	}{
		"linked":              {steps{link}, "drover guest 2 A"},
		"no root written":     {steps{link, noRoot}, "drover guest 2 A"},
		"renamed":             {steps{link, noRoot, rename}, "drover guest 2 A"},
		"new root written":    {steps{link, noRoot, rename, newRoot}, "drover guest 2 A"},
		"start written":       {steps{link, noRoot, rename, newRoot, starting}, "drover guest 2 A"},
		"QEMU halted":         {steps{link, noRoot, rename, newRoot, starting, halted}, "drover guest 2 A"},
		"run begun":           {steps{link, noRoot, rename, newRoot, starting, halted, begun}, "drover guest 1 B"},
		"old one again":       {steps{link, noRoot, rename, newRoot, again}, "drover guest 2 A"},
		"old one written":     {steps{link, noRoot, rename, newRoot, again, oldRoot}, "drover guest 2 A"},
		"restoration cut off": {steps{link, noRoot, rename, newRoot, removed}, "drover guest 2 A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, spec := e.replacement(t, e.open(t))
			for _, step := range c.done {
				assert.NoError(t, step(r))
			}
			d := e.open(t)
			s := boots(t, d, spec, c.prints)
			if strings.HasSuffix(c.prints, "B") {
				if s.Refused != nil {
					t.Errorf("the image of its disk is refused: %+v", *s.Refused)
				}
			} else {
				wantRefused(t, s, e.other, "stands on "+e.plain)
				wantRestored(t, d, spec)
			}
			assert.ErrorIs(t, "a second disk", assert.ErrorOf(os.Stat(d.InstanceOf(spec.UID).File(instance.OldRootFile))), fs.ErrNotExist)
		})
	}
}

// wantRestored checks that nothing is left of the replacement, including what older
// versions read.
func wantRestored(t *testing.T, d *Driver, spec driver.ServerSpec) {
	t.Helper()
	h := d.InstanceOf(spec.UID)
	r, err := h.Load()
	assert.NoError(t, err)
	if r.Old != nil || r.Root.Image.Source != r.Settings.Image.Source {
		t.Errorf("the record is %+v", r)
	}
}

// TestOldDiskIsKept checks that what an older version has put aside stays until a guest
// runs with the disk that the record names.
func TestOldDiskIsKept(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	broken, d := e.openBinary(t, fails(t, "echo broken; exit 1")), e.open(t)
	disk, diskless := e.spec(), e.linuxSpec(t)
	for _, spec := range []driver.ServerSpec{disk, diskless} {
		off(t, d, spec)
		assert.NoError(t, os.WriteFile(d.InstanceOf(spec.UID).File(instance.OldRootFile), []byte("old"), 0o600))
	}
	kept := func(spec driver.ServerSpec, while string) {
		t.Helper()
		if content, err := os.ReadFile(d.InstanceOf(spec.UID).File(instance.OldRootFile)); err != nil || string(content) != "old" {
			t.Errorf("%s the old disk is %q, %v", while, content, err)
		}
	}
	kept(disk, "of a machine that is off")
	refuses(t, broken, disk, driver.ErrRetry, "broken")
	kept(disk, "after a start that failed")
	pause(t, d, disk)
	kept(disk, "before the guest was resumed")
	reach(t, d, diskless, driver.StateRunning)
	kept(diskless, "of a machine without a disk")
}

// replacement makes a machine whose guest has written to its disk, a new disk beside
// it, and the spec that asked for that.
func (e *engine) replacement(t *testing.T, d *Driver) (*replacement, driver.ServerSpec) {
	t.Helper()
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	spec.Image.Source = e.other
	s, err := d.findServer(t.Context(), spec.Target)
	assert.NoError(t, err)
	made, err := d.Disks.Make(s.File("new"), instance.RootOrder(spec, disks.ImageSettings{Source: e.other}))
	assert.NoError(t, err)
	return &replacement{s, d, s.Root, made}, spec
}

// TestOldDiskMissing checks that, if the disk to be restored was taken away, nothing is
// started in its place.
func TestOldDiskMissing(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	r, spec := e.replacement(t, d)
	r.Root, r.Old = r.new, &r.old
	assert.NoError(t, r.Save())
	assert.ErrorSays(t, "Ensure", assert.ErrorOf(d.Ensure(t.Context(), spec)), r.File(instance.OldRootFile))
	off(t, d, spec)
}
