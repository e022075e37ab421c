// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// wantError checks the kind, the reason and the text of an error.
func wantError(t testing.TB, err, kind error, says ...string) {
	t.Helper()
	for _, k := range []error{driver.ErrNotFound, driver.ErrInvalid, driver.ErrUnsupported, driver.ErrRetry, driver.ErrExhausted, driver.ErrUnavailable, driver.ErrFenced} {
		if errors.Is(err, k) != errors.Is(kind, k) {
			t.Errorf("got the error %v, want the kind %q: it is %q %v", err, kind, k, errors.Is(err, k))
			return
		}
	}
	for _, text := range says {
		assert.True(t, strings.Contains(err.Error()+" "+driver.ReasonOf(err), text),
			"got the error %q with reason %q, want %q in it", err, driver.ReasonOf(err), text)
	}
}

// leavesNothing checks that a server that could not be created does not exist. A
// notification for it may be written at this moment.
func leavesNothing(t *testing.T, d *Driver) {
	t.Helper()
	for _, sub := range []string{instance.VMsDir, "tmp"} {
		assert.Eventually(t, "nothing is in "+sub, func(testing.TB) error {
			left, err := os.ReadDir(d.Host.StateDir.Path(sub))
			if err == nil && len(left) != 0 {
				err = fmt.Errorf("left behind: %v", left)
			}
			return err
		})
	}
}

func TestBadImages(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	outside := filepath.Join(t.TempDir(), "outside.img")
	assert.NoError(t, os.Link(e.plain, outside))
	file := func(name, content string) string {
		path := filepath.Join(e.images, name)
		assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		return path
	}
	link := filepath.Join(e.images, "link.img")
	assert.NoError(t, os.Symlink(outside, link))
	onTop := filepath.Join(e.images, "ontop.qcow2")
	framework.RunQEMUImg(t, "create", "-q", "-f", "qcow2", "-F", "raw", "-b", e.plain, onTop)
	socket := filepath.Join(e.images, "socket")
	framework.Listen(t, "unix", socket)

	const missing = "ImageUnavailable"
	for name, c := range map[string]struct {
		source string
		kind   error
		says   []string
	}{
		"none":             {"", driver.ErrInvalid, []string{"spec.image.source is empty"}},
		"no path":          {"images/A", driver.ErrInvalid, []string{`"images/A"`, "container image", "absolute path"}},
		"another form":     {"ftp://x/y.img", driver.ErrInvalid, []string{"absolute path"}},
		"dots":             {e.images + "/../images/boot-A0.img", driver.ErrInvalid, []string{"must not contain //"}},
		"outside":          {outside, driver.ErrInvalid, []string{"images may be in", e.images}},
		"a link out":       {link, driver.ErrRetry, []string{missing, "escapes"}},
		"missing":          {filepath.Join(e.images, "none.img"), driver.ErrRetry, []string{missing, "no such file"}},
		"a folder":         {e.images + "/.", driver.ErrInvalid, []string{"must not contain //"}},
		"the folder":       {e.images, driver.ErrRetry, []string{missing, "not a regular file"}},
		"a socket":         {socket, driver.ErrRetry, []string{missing}},
		"text":             {file("text.img", strings.Repeat("text\n", 512)), driver.ErrRetry, []string{missing, "not a disk image"}},
		"empty":            {file("empty.img", ""), driver.ErrRetry, []string{missing, "empty"}},
		"on another image": {onTop, driver.ErrRetry, []string{missing, "backing file"}},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			spec.Image.Source = c.source
			refuses(t, d, spec, c.kind, c.says...)
			leavesNothing(t, d)
		})
	}
}

// TestImageAppears checks that the next attempt finds an image that was missing.
func TestImageAppears(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Image.Source = "file://" + filepath.Join(e.images, "late, \"odd\" %s\nname.img")
	refuses(t, d, spec, driver.ErrRetry, "no such file")
	assert.NoError(t, os.Link(e.plain, strings.TrimPrefix(spec.Image.Source, "file://")))
	boots(t, d, spec, "drover guest 1 A")
}

// TestImageChanged checks that a disk on top of a changed image is not used.
func TestImageChanged(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	content := framework.ReadFile(t, e.plain)
	assert.NoError(t, os.Rename(e.plain, e.plain+".old"))
	assert.NoError(t, os.WriteFile(e.plain, []byte(content), 0o600))
	refuses(t, d, spec, driver.ErrRetry, "was changed or replaced", "ImageUnavailable")
	assert.NoError(t, os.Rename(e.plain+".old", e.plain))
	reach(t, d, spec, driver.StateRunning)
}

func TestSizes(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	tooMuch := e.spec()
	tooMuch.MemoryBytes = 1 << 42
	refuses(t, d, tooMuch, driver.ErrExhausted, "needed 4Ti and")
	small := e.spec()
	small.RootDiskBytes = 1000
	refuses(t, d, small, driver.ErrInvalid, "spec.resource.rootDisk is 1k", "needs 1Mi")

	spec := e.spec()
	spec.RootDiskBytes = 5 << 20
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Applied.RootDiskBytes == 5<<20, "it has %+v", s.Applied)
	spec.RootDiskBytes = 9 << 20
	grown := reach(t, d, spec, driver.StateRunning)
	assert.True(t, grown.Applied.RootDiskBytes == 9<<20 && grown.Run == s.Run && len(grown.Pending) == 0, "grown it is %+v", grown)
	off := spec
	off.Power, off.RootDiskBytes = driver.PowerOff, 20<<20
	reach(t, d, off, driver.StateStopped)
	spec.RootDiskBytes = 20 << 20
	boots(t, d, spec, "drover guest 2 A")
	wantDisk(t, d, spec, instance.RootDiskFile, 20<<20)
	spec.RootDiskBytes = 9 << 20
	refuses(t, d, spec, driver.ErrInvalid, "may only grow")
	gone(t, d, spec)
	refuses(t, d, tooMuch, driver.ErrExhausted)
}

// TestStopOfWhatIsInvalid checks that a spec that no machine can satisfy starts no machine, and that
// a running machine with this spec can be stopped.
func TestStopOfWhatIsInvalid(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	none := e.spec()
	none.Power, none.CPUMilli = driver.PowerOff, 300_000
	refuses(t, d, none, driver.ErrInvalid, "resource.cpu")
	leavesNothing(t, d)
	for name, change := range map[string]func(*driver.ServerSpec){
		"resource.cpu":      func(s *driver.ServerSpec) { s.CPUMilli = 300_000 },
		"resource.rootDisk": func(s *driver.ServerSpec) { s.RootDiskBytes = 1 << 20 },
		"image.checksum":    func(s *driver.ServerSpec) { s.Image.Checksum = "sha256:x" },
		"ports[0].hostIP":   func(s *driver.ServerSpec) { s.Ports = []driver.Port{{Port: 80, HostIP: "224.0.0.1"}} },
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			spec.RootDiskBytes = 2 << 20
			reach(t, d, spec, driver.StateRunning)
			change(&spec)
			refuses(t, d, spec, driver.ErrInvalid, name)
			s := off(t, d, spec)
			assert.True(t, s.Exit != nil && s.Exit.Code == 0, "it ended with %+v", s.Exit)
			assert.True(t, s.Applied.CPUMilli == 0 && s.Applied.MemoryBytes == 0, "while it is off it has %+v", s.Applied)
			refuses(t, d, spec, driver.ErrInvalid, name)
		})
	}
}

func TestPortTaken(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	listener := framework.Listen(t, "tcp4", "0.0.0.0:0")
	spec := e.spec()
	spec.Ports = []driver.Port{
		{Name: "any", Protocol: "TCP", Port: 22},
		{Name: "web", Protocol: "TCP", Port: 80, HostPort: framework.PortOf(listener)},
		{Name: "dns", Protocol: "UDP", Port: 53},
	}
	refuses(t, d, spec, driver.ErrRetry, "ports[1] (web)", "address already in use", driver.ReasonPortConflict)
	assert.True(t, d.Host.InstanceOf(spec.UID).Machine.PID() == 0, "a machine runs")
	assert.NoError(t, listener.Close())
	reach(t, d, spec, driver.StateRunning)
}

// TestStartCutOff simulates controllers that were killed while they started a machine:
// before QEMU was started, and before the guest was resumed.
func TestStartCutOff(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	first := reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	pid := h.Machine.PID()
	assert.NoError(t, h.Machine.Execute(t.Context(), "stop", nil, nil))
	assert.NoError(t, os.Remove(h.Machine.File(machine.PIDFile)))
	rewind(t, h)
	next := e.open(t)
	listed := listAnswering(t, next)
	if len(listed) != 1 || listed[0].State != driver.StatePaused { // so that a controller continues the start
		t.Errorf("a machine that waits to be resumed is %+v", listed)
	}
	adopted := reach(t, next, spec, driver.StateRunning)
	assert.True(t, adopted.Run == first.Run && h.Machine.PID() == pid, "the run %s of process %d became %s of process %d", first.Run, pid, adopted.Run, h.Machine.PID())

	assert.NoError(t, h.Machine.Kill(t.Context()))
	rewind(t, h)
	listed = listAnswering(t, next)
	assert.True(t, len(listed) == 1 && listed[0].State == driver.StateStopped && listed[0].Exit == nil && listed[0].StartedAt.IsZero(),
		"a machine that did not come to start is %+v", listed)
	again := reach(t, next, spec, driver.StateRunning)
	assert.True(t, again.Run != first.Run, "a new start has the run of the one before")
}

// rewind makes a start look interrupted before the guest was resumed.
func rewind(t *testing.T, h *instance.Instance) {
	t.Helper()
	r, err := h.Load()
	assert.NoError(t, err)
	r.Phase = record.PhaseStarting
	assert.NoError(t, r.Save())
}

// TestStopOfWhatStarts checks that a guest that was not resumed yet is not booted just to be
// stopped.
func TestStopOfWhatStarts(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := pause(t, d, spec)
	rewind(t, d.Host.InstanceOf(spec.UID))
	spec.Power = driver.PowerOff
	stopped := ensure(t, d, spec)
	assert.True(t, stopped.State == driver.StateStopped && stopped.Run == s.Run && stopped.Exit == nil, "it is %+v", stopped)
	printed, err := os.ReadFile(d.Host.InstanceOf(spec.UID).Machine.File(machine.SerialLogFile))
	assert.True(t, err == nil && len(printed) == 0, "the guest printed %q, %v", printed, err)
}

// TestRunsOnce checks that the holder of the run lock keeps other processes from starting
// the server.
func TestRunsOnce(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	lock, err := d.Host.InstanceOf(spec.UID).Machine.ClaimRun()
	assert.NoError(t, err)
	_, err = d.Host.InstanceOf(spec.UID).Machine.ClaimRun()
	assert.True(t, errors.Is(instance.ContractError(err), driver.ErrRetry), "the run lock is given out twice: %v", err)
	assert.NoError(t, lock.Close())
}

// TestDirectoryRemoved checks that a machine whose directory was removed while it ran is
// ended when the server is made again, and when it is deleted.
func TestDirectoryRemoved(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	for name, next := range map[string]func(spec driver.ServerSpec){
		"made again": func(spec driver.ServerSpec) { reach(t, d, spec, driver.StateRunning) },
		"deleted": func(spec driver.ServerSpec) {
			wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound)
		},
	} {
		spec := e.spec()
		reach(t, d, spec, driver.StateRunning)
		h := d.Host.InstanceOf(spec.UID)
		pid := h.Machine.PID()
		assert.NoError(t, os.RemoveAll(h.Machine.Path))
		next(spec)
		assert.Eventually(t, "the machine that lost its directory ends: "+name, func(testing.TB) error {
			return assert.ErrorUnless(!proc.HasOption(pid, "-name", launch.NameOf(string(spec.UID))), "it runs")
		})
		gone(t, d, spec)
	}
}

// TestLockReplaced checks that a machine which lost its run lock, as when a backup was
// restored while it ran, is ended before another is started in its place.
func TestLockReplaced(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	for _, name := range []string{machine.RunLockFile, instance.RootDiskFile} {
		content := framework.ReadFile(t, h.Machine.File(name))
		assert.NoError(t, errors.Join(os.Remove(h.Machine.File(name)), os.WriteFile(h.Machine.File(name), []byte(content), 0o600)))
	}
	assert.NoError(t, os.Remove(h.Machine.File(machine.PIDFile)))
	waitExit(t, d, spec.UID)
	reach(t, d, spec, driver.StateRunning)
	all := machines(d, []types.UID{spec.UID})
	assert.True(t, len(all[spec.UID]) == 1, "its machines are the processes %v, want one", all[spec.UID])
}

// TestRemovedWithoutLock checks that a machine which lost its run lock while it ran ends
// before its server is removed or released: afterwards no record of the machine exists.
func TestRemovedWithoutLock(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, retain := range map[string]bool{"removed": false, "released": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := e.open(t)
			spec := e.spec()
			reach(t, d, spec, driver.StateRunning)
			h := d.Host.InstanceOf(spec.UID)
			pid := h.Machine.PID()
			assert.NoError(t, os.Remove(h.Machine.File(machine.RunLockFile)))
			assert.NoError(t, d.Delete(t.Context(), spec.Target, retain))
			assert.True(t, !proc.HasOption(pid, "-name", launch.NameOf(string(spec.UID))), "process %d runs on", pid)
		})
	}
}

// TestDiskOfNoRecord checks that a disk with data that the record has lost is not overwritten,
// but that a disk of an interrupted call is.
func TestDiskOfNoRecord(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	h := d.Host.InstanceOf(spec.UID)
	lose := func() *instance.Instance {
		t.Helper()
		r, err := h.Load()
		assert.NoError(t, err)
		lost := *r
		lost.Root = disks.Disk{}
		assert.NoError(t, lost.Save())
		return r
	}
	lose()
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	r := lose()
	refuses(t, d, spec, driver.ErrRetry, h.Machine.File(instance.RootDiskFile), "does not name it", "it holds data")
	assert.NoError(t, r.Save())
	boots(t, d, spec, "drover guest 2 A")
}

// TestExitsUnsupervised checks that a controller knows how a guest ended, whether the
// controller watched the end or started later.
func TestExitsUnsupervised(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for say, want := range map[string]driver.Exit{
		"x": {Code: 0, Reason: "Completed"},
		"p": {Code: 1, Reason: "GuestPanicked"},
		"":  {Code: 137, Reason: "Killed"},
	} {
		for _, watched := range []bool{false, true} {
			d := e.open(t)
			spec := e.spec()
			s := reach(t, d, spec, driver.StateRunning)
			if watched {
				keepWatching(t, d)
			}
			if say == "" {
				assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
			} else {
				e.sendText(t, s, say)
			}
			end := waitExit(t, e.open(t), spec.UID)
			assert.True(t, end.Code == want.Code && end.Reason == want.Reason && !end.At.IsZero(),
				"watched %v, said %q: it ended with %+v, want %+v", watched, say, end, want)
			if watched {
				waitStopped(t, d.Host.InstanceOf(spec.UID))
			}
			again := waitExit(t, e.open(t), spec.UID)
			assert.True(t, again.Code == end.Code && again.Reason == end.Reason && again.At.Equal(end.At), "the end was %+v and is %+v", end, again)
			gone(t, d, spec)
		}
	}
}

func waitExit(t *testing.T, d *Driver, uid types.UID) *driver.Exit {
	t.Helper()
	var end *driver.Exit
	assert.Eventually(t, "List shows an end", func(t testing.TB) error {
		servers, err := d.List(t.Context(), uid)
		if err != nil || len(servers) != 1 || servers[0].Exit == nil {
			return errors.Join(err, errors.New("none yet"))
		}
		end = servers[0].Exit
		return nil
	})
	return end
}

// keepWatching keeps a watch open until the test ends.
func keepWatching(t *testing.T, d *Driver) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	uids, err := d.Watch(ctx)
	assert.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range uids {
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// TestStopTooEarly checks that the power button is pressed again for a guest that was not
// ready for it, without a call.
func TestStopTooEarly(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	keepWatching(t, d)
	spec := e.spec()
	pause(t, d, spec)
	spec.Power = driver.PowerOff
	ensure(t, d, spec)
	end := waitExit(t, d, spec.UID)
	assert.True(t, end.Code == 0, "it ended with %+v", end)
}

// fails returns a fake QEMU that prints its version, but runs a script in place of a start.
func fails(t *testing.T, does string) string {
	t.Helper()
	return framework.QEMUScript(t, "case $1 in "+framework.QEMUQueryCases+" *) "+does+";; esac")
}

func TestPrograms(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, c := range map[string]struct{ binary, says string }{
		"missing":  {"qemu-of-nowhere", "is not installed"},
		"too old":  {framework.QEMUScript(t, "echo QEMU emulator version 5.2.0"), "is version 5.2, and 6.2 or newer is needed"},
		"silent":   {framework.QEMUScript(t, "true"), "in place of its version"},
		"failing":  {framework.QEMUScript(t, "exit 1"), "exit status 1"},
		"no QEMU":  {"/etc/passwd", "permission denied"},
		"the real": {DefaultBinary, ""},
	} {
		t.Run(name, func(t *testing.T) {
			o := e.options()
			o.Binary = c.binary
			_, err := openWith(t, o).EngineID(t.Context())
			if c.says == "" {
				assert.NoError(t, err)
				return
			}
			wantError(t, err, driver.ErrUnavailable, c.says)
		})
	}
}

// TestQEMUFails checks that a QEMU which does not come up leaves the server as it was, and that the error has
// the output of QEMU or, if it printed nothing, how it ended.
func TestQEMUFails(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for does, c := range map[string]struct {
		kind error
		says string
	}{
		"echo 'it is broken'; exit 1": {driver.ErrRetry, "QEMU did not start: it is broken"},
		`echo "cannot set up guest memory 'pc.ram': Cannot allocate memory"; exit 1`: {driver.ErrExhausted, "no memory"},
		`echo 'Failed to get "write" lock'; exit 1`:                                  {driver.ErrRetry, driver.ReasonImageUnavailable},
		"kill -9 $$":        {driver.ErrRetry, "QEMU did not start: it printed nothing, and ended with signal: killed"},
		"exit 3":            {driver.ErrRetry, "QEMU did not start: it printed nothing, and ended with exit status 3"},
		"true":              {driver.ErrRetry, "QEMU did not start: it printed nothing, and ended with exit status 0"},
		"sleep 0.3; exit 4": {driver.ErrRetry, "QEMU did not start: it printed nothing, and ended with exit status 4"}, // with a supervisor
	} {
		d := e.openBinary(t, fails(t, does))
		spec := e.spec()
		refuses(t, d, spec, c.kind, c.says)
		s := listed(t, d, spec)
		assert.True(t, s.State == driver.StateStopped && s.Run == "" && s.Exit == nil, "it is %+v", s)
		left, err := filepath.Glob(d.Host.StateDir.Path(exits.Dir, string(spec.UID)+".*"))
		assert.True(t, err == nil && len(left) == 0, "the start has left %q, %v", left, err)
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	short, long := t.TempDir(), filepath.Join(t.TempDir(), strings.Repeat("d", 80))
	for name, c := range map[string]struct {
		o    Options
		says string
	}{
		"no cluster":          {Options{Dir: short}, "cluster id"},
		"no folder":           {Options{ClusterID: "c"}, "needs a folder"},
		"another accelerator": {Options{ClusterID: "c", Dir: short, Accel: "xen"}, `"xen": it must be auto, kvm or tcg`},
		"no host ports":       {Options{ClusterID: "c", Dir: short, HostPorts: "x"}, `--qemu-host-ports is "x"`},
		"a long path":         {Options{ClusterID: "c", Dir: long}, "limited to 107"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.ErrorSays(t, "New", assert.ErrorOf(New(c.o)), c.says)
		})
	}
}

// TestDefaultImage checks that a change of the default image affects no server.
func TestDefaultImage(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	o.Image = e.plain
	d := openWith(t, o)
	spec := e.spec()
	spec.Image.Source = ""
	boots(t, d, spec, "drover guest 1 A")
	o.Image = e.other
	d = openWith(t, o)
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, len(s.Pending) == 0, "pending are %v", s.Pending)
	off(t, d, spec)
	boots(t, d, spec, "drover guest 2 A")
}
