// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// waitsForDisk starts a machine, and waits until its disk has paused the guest. Once the guest runs,
// it makes no further call: each may resume the guest, which uses up a failure of the disk.
func waitsForDisk(t *testing.T, d *Driver, spec driver.ServerSpec) (s driver.Server) {
	t.Helper()
	assert.Eventually(t, "the guest waits for its disk", func(t testing.TB) error {
		listed, err := d.List(t.Context(), spec.UID)
		if err == nil && (len(listed) == 0 || listed[0].State != driver.StatePaused && listed[0].State != driver.StateRunning) {
			_, err = d.Ensure(t.Context(), spec)
		}
		switch {
		case err != nil:
			return err
		case len(listed) != 1 || listed[0].State != driver.StatePaused || listed[0].Err == nil:
			return fmt.Errorf("it is %+v", listed)
		}
		s = listed[0]
		return nil
	})
	return s
}

// refusesToResume returns the error of a guest whose disk still fails. On a loaded host the
// write may fail only after Ensure has returned, and the next call reports it.
func refusesToResume(t testing.TB, d *Driver, spec driver.ServerSpec) (reported error) {
	t.Helper()
	assert.Eventually(t, "Ensure reports the disk", func(t testing.TB) error {
		if _, reported = d.Ensure(t.Context(), spec); reported == nil {
			return errors.New("it reports nothing")
		}
		return nil
	})
	return reported
}

// goesOn waits until the guest has booted, which its supervisor resumes whenever its disk has paused it.
func goesOn(t *testing.T, d *Driver, spec driver.ServerSpec) (s driver.Server) {
	t.Helper()
	assert.Eventually(t, "the guest continues", func(t testing.TB) (err error) {
		if s, err = d.Ensure(t.Context(), spec); err != nil {
			return err
		}
		content, err := os.ReadFile(d.Host.InstanceOf(spec.UID).Machine.File(machine.SerialLogFile))
		if err == nil && !strings.Contains(string(content), "drover guest 1 A") {
			err = textError(content)
		}
		return err
	})
	return s
}

// TestDiskErrors checks that a disk whose quota is used up, or that fails, pauses the
// guest. The server reports that, and the guest continues where it was once the disk
// works again.
func TestDiskErrors(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		errno int
		kind  error
		says  []string
	}{
		"no room":  {28, driver.ErrExhausted, []string{"no space left on device", "disk is full"}},
		"quota":    {122, driver.ErrExhausted, []string{"root (write): Disk quota exceeded", "raise the quota"}},
		"an error": {5, driver.ErrRetry, []string{"root (write): Input/output error", driver.ReasonDiskError}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEngine(t)
			d := e.openBinary(t, framework.FailingDiskScript(t, c.errno, 3))
			spec := e.spec()
			s := waitsForDisk(t, d, spec)
			err := refusesToResume(t, d, spec)
			wantError(t, err, c.kind, append(c.says, "the guest was paused by an error of its disk")...)
			listed := listAnswering(t, d, spec.UID)
			if got := listed[0].Err; got == nil || !strings.HasSuffix(err.Error(), got.Error()) || errors.Is(got, driver.ErrExhausted) != errors.Is(c.kind, driver.ErrExhausted) {
				t.Errorf("List says %v, and Ensure %v", got, err)
			}
			after := goesOn(t, d, spec)
			assert.True(t, after.Run == s.Run && after.Err == nil, "it is %+v, and was %+v", after, s)
		})
	}
}

// inodes is how many files fit on a small disk. It is the fewest that a file system
// allows.
const inodes = 1000

// newDriverOnSmallDisk is newDriver with a disk for the engine's folder alone, of so many MiB.
func newDriverOnSmallDisk(t *testing.T, size int) (*engine, *Driver) {
	t.Helper()
	e := newEngine(t)
	assert.NoError(t, os.Mkdir(e.dir, 0o700))
	err := unix.Mount("drover-test", e.dir, "tmpfs", 0, sizeOption(size))
	if errors.Is(err, unix.EPERM) {
		t.Skip("a disk that is full needs a separate file system, and mounting one is not allowed here: run the tests as root")
	}
	assert.NoError(t, err)
	t.Cleanup(func() {
		e.removeServers(t)
		assert.NoError(t, unix.Unmount(e.dir, unix.MNT_DETACH))
	})
	d := e.open(t)
	_, err = d.Host.FindSupervisor() // which is installed then
	assert.NoError(t, err)
	return e, d
}

// sizeOption has room for the folder's copy of drover-machine too.
func sizeOption(size int) string {
	program, _ := os.Stat(machineProgram)
	return fmt.Sprintf("size=%d,nr_inodes=%d", program.Size()+int64(size)<<20, inodes)
}

// fill uses up the rest of the disk, and returns the file that does.
func (e *engine) fill(t *testing.T) string {
	t.Helper()
	path := filepath.Join(e.dir, "filler")
	f, err := os.Create(path)
	assert.NoError(t, err)
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	assert.NoError(t, f.Close())
	return path
}

// fillInodes leaves no room for another file or folder either.
func (e *engine) fillInodes(t *testing.T) {
	t.Helper()
	var err error
	for n := 0; err == nil; n++ {
		err = os.WriteFile(filepath.Join(e.dir, fmt.Sprintf("filler-%d", n)), nil, 0o600)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
}

// TestDiskFullFetching checks that a partly fetched image is removed if the image leaves no
// space for other files.
func TestDiskFullFetching(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 2)
	content := append([]byte(framework.ReadFile(t, e.plain)), bytes.Repeat([]byte{1}, 3<<20)...)
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(content) })) // without a Content-Length
	t.Cleanup(web.Close)
	spec := e.spec()
	spec.Image = driver.Image{Source: web.URL, Checksum: checksumOfContent(content)}
	wantError(t, d.waitFor(t, spec), driver.ErrRetry, "the image has at least", "bytes are free on the disk of "+e.dir, driver.ReasonImageUnavailable)
	leavesNothing(t, d)
	have, err := d.Host.Images.List()
	assert.True(t, err == nil && len(have) == 0, "the store has %v, %v", have, err)
	assert.NoError(t, unix.Mount("drover-test", e.dir, "tmpfs", unix.MS_REMOUNT, sizeOption(32)))
	boots(t, d, spec, "drover guest 1 A")
}

// TestDiskFullCreating checks that a server without room is not made, and that one
// without room to start is left as it was.
func TestDiskFullCreating(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 8)
	spec := e.spec()
	filler := e.fill(t)
	refuses(t, d, spec, driver.ErrExhausted, "no room left on its disk", "no space left on device")
	leavesNothing(t, d)
	assert.NoError(t, os.Remove(filler))
	off(t, d, spec)

	filler = e.fill(t)
	refuses(t, d, spec, driver.ErrExhausted, "no room left on its disk")
	s := listed(t, d, spec)
	assert.True(t, s.State == driver.StateStopped && d.Host.InstanceOf(spec.UID).Machine.PID() == 0, "it is %+v", s)
	assert.NoError(t, os.Remove(filler))
	boots(t, d, spec, "drover guest 1 A")
	gone(t, d, spec)
	leavesNothing(t, d)
}

// TestDiskFullRunning checks that a guest whose disk cannot grow waits, is reported as
// such, and continues where it was once there is room.
func TestDiskFullRunning(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 8)
	on := e.spec()
	before := pause(t, d, on)
	filler := e.fill(t)
	assert.Eventually(t, "the guest waits", func(t testing.TB) error {
		_, _ = d.Ensure(t.Context(), on)
		servers, err := d.List(t.Context(), on.UID)
		if err != nil || len(servers) != 1 || servers[0].Err == nil || !strings.Contains(servers[0].Err.Error(), "disk is full") {
			return fmt.Errorf("it is %+v, %w", servers, err)
		}
		return nil
	})
	refuses(t, d, on, driver.ErrExhausted, "resume of server", "disk is full")
	assert.NoError(t, os.Remove(filler))
	after := boots(t, d, on, "drover guest 1 A")
	assert.True(t, after.Run == before.Run, "it was started again")
}

// TestDiskFullEnding checks a disk on which nothing can be written. A guest's end is
// still seen, and so are the other servers. A server that is to stop is ended, and all
// can be deleted.
func TestDiskFullEnding(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 8)
	ends, stays := e.spec(), e.stubbornSpec()
	first := boots(t, d, ends, "drover guest 1 A")
	boots(t, d, stays, "drover guest 1 S")
	_ = e.fill(t)
	e.fillInodes(t)

	e.sendText(t, first, "x")
	end := waitExit(t, d, ends.UID)
	again := waitExit(t, d, ends.UID)
	assert.True(t, *again == *end && end.Reason == "Completed", "it ended with %+v, and then with %+v", end, again)
	listed, err := d.List(t.Context())
	assert.True(t, err == nil && len(listed) == 2, "List reports %+v, %v", listed, err)
	assert.Equal(t, "its output", end.Output, "")
	waitStopped(t, d.Host.InstanceOf(ends.UID)) // once that is recorded, for which there was room
	stays.Power, stays.StopBy = driver.PowerOff, time.Now()
	s := reach(t, d, stays, driver.StateStopped)
	assert.True(t, s.Exit != nil && s.Exit.Reason == "Forced", "it ended with %+v", s.Exit)
	for _, spec := range []driver.ServerSpec{ends, stays} {
		e.fillInodes(t) // the inodes that a machine frees as it ends
		assert.NoError(t, d.Delete(t.Context(), spec.Target, false))
	}
	leavesNothing(t, d)
}

// TestDiskFullRestart checks that a guest which does not shut down for a restart is ended when its time is over, though that
// cannot be recorded, and each try has a later end.
func TestDiskFullRestart(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 8)
	spec := e.stubbornSpec()
	first := boots(t, d, spec, "drover guest 1 S")
	e.fill(t)
	e.fillInodes(t)
	restart := spec
	restart.RestartRun, restart.StopBy = first.Run, time.Now().Add(3*time.Second)
	_, err := d.Ensure(t.Context(), restart)
	assert.ErrorIs(t, "the first try", err, driver.ErrExhausted)
	restart.StopBy = restart.StopBy.Add(time.Hour)
	_ = assert.ErrorOf(d.Ensure(t.Context(), restart)) // which may find it ended
	end := waitExit(t, d, spec.UID)
	assert.True(t, end.Reason == "Forced", "it ended with %+v", end)
}

// TestDiskFullFollowing checks that a machine gets another supervisor while nothing can be written to the disk: first in
// place of a supervisor that was killed, with the same ports, and then by another version of Drover. The last supervisor
// shuts the guest down.
func TestDiskFullFollowing(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 40)
	spec, answers := withPort(t, e, d)
	inst := d.Host.InstanceOf(spec.UID)
	waitPrinted(t, inst, "drover guest 1 A")
	follows := func() {
		t.Helper()
		assert.NoError(t, assert.ErrorOf(inst.Supervisor().Reach(t.Context())))
		assert.Check(t, "the port answers", answers)
		s := listAnswering(t, d, spec.UID)[0]
		assert.True(t, s.State == driver.StateRunning && !s.NeedsEnsure, "it is %+v", s)
	}
	fill := func() {
		_ = e.fill(t)
		e.fillInodes(t)
	}
	fill()
	endSupervisor(t, inst)
	follows()

	before := supervisorOf(t, inst)
	d = openWith(t, e.otherVersion(t))
	keepWatching(t, d)
	waitUpgraded(t, inst, before, func() {})
	fill() // what the new program has left
	follows()
	s := off(t, d, spec)
	assert.True(t, s.Exit != nil && s.Exit.Reason == "Completed", "it ended with %+v", s.Exit)
}

// TestUpgradeOnFullDisk checks that a version of Drover which cannot install its program, since no room was taken for that
// and the disk is full, leaves supervisors of the version before alone, and replaces them once there is room.
func TestUpgradeOnFullDisk(t *testing.T) {
	t.Parallel()
	e, d := newDriverOnSmallDisk(t, 40)
	spec, answers := withPort(t, e, d)
	inst := d.Host.InstanceOf(spec.UID)
	waitPrinted(t, inst, "drover guest 1 A")
	before := supervisorOf(t, inst)
	assert.NoError(t, os.Remove(filepath.Join(e.dir, programsDir, ".room")))
	filler := e.fill(t)
	o, now := e.otherVersion(t), framework.NewFakeClock(time.Now())
	o.Clock = now
	next := openWith(t, o)
	keepWatching(t, next)
	s := listAnswering(t, next, spec.UID)[0]
	assert.True(t, s.State == driver.StateRunning && len(s.Ports) == 1, "it is %+v", s)
	assert.ErrorIs(t, "the program", assert.ErrorOf(next.Host.FindSupervisor()), unix.ENOSPC)
	assert.True(t, supervisorOf(t, inst) == before, "the supervisor was replaced")
	assert.Check(t, "the port answers", answers)
	assert.NoError(t, os.Remove(filler))
	waitUpgraded(t, inst, before, func() { now.Step(instance.SuperviseEvery) })
	assert.NoError(t, assert.ErrorOf(inst.Supervisor().Reach(t.Context())))
	assert.Check(t, "the port answers", answers)
}
