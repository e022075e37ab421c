// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestBrokenRecord checks that a server whose record cannot be read is listed, with
// whether it runs. It is not changed, and the others stay usable.
func TestBrokenRecord(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, other := e.spec(), e.spec()
	reach(t, d, spec, driver.StateRunning)
	path := d.Host.InstanceOf(spec.UID).Machine.File(instance.RecordFile)
	content := framework.ReadFile(t, path)
	for name, broken := range map[string]string{"nonsense": "{", "empty": "", "no one's": `{"format": 1}`} {
		assert.NoError(t, os.WriteFile(path, []byte(broken), 0o600))
		wantBroken(t, d, spec, name, driver.StateRunning)
		wantBroken(t, e.openAs(t, "cluster-2", e.dir), spec, name, driver.StateRunning)
		other.Power = driver.PowerOn
		reach(t, d, other, driver.StateRunning)
		gone(t, d, other)
	}
	assert.NoError(t, os.Remove(path))
	wantBroken(t, d, spec, "none", driver.StateRunning)
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
	wantBroken(t, d, spec, "none and off", driver.StateStopped)
	assert.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	end := waitExit(t, d, spec.UID)
	assert.True(t, end.Reason == "Killed", "repaired, it ended with %+v", end)
	gone(t, d, spec)
	leavesNothing(t, d)
}

// TestUnreadRecord checks that the advice about an unreadable record depends on why it
// cannot be read.
func TestUnreadRecord(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	h := d.Host.InstanceOf(spec.UID)
	for cause, c := range map[error]struct {
		broken, remove bool
	}{
		unix.EMFILE: {false, false},
		unix.ENFILE: {false, false},
		unix.EIO:    {true, false},
		unix.EACCES: {true, false},
		unix.ENOENT: {true, true},
	} {
		err := instance.ClassifyReadError(h, &os.PathError{Op: "open", Path: h.Machine.File(instance.RecordFile), Err: cause})
		says := err.Error()
		if instance.IsBroken(err) != c.broken || strings.Contains(says, "remove") != c.remove || errors.Is(err, driver.ErrUnavailable) == c.broken ||
			strings.Contains(says, "repair") != c.broken || !strings.Contains(says, h.Machine.File(instance.RecordFile)+": "+cause.Error()) {
			t.Errorf("%v: got the error %v, broken %v", cause, err, instance.IsBroken(err))
		}
	}
	assert.NoError(t, os.Rename(h.Machine.File(instance.RecordFile), h.Machine.File("kept")))
	assert.NoError(t, os.Mkdir(h.Machine.File(instance.RecordFile), 0o700))
	wantBroken(t, d, spec, "a folder", driver.StateStopped)
	assert.NoError(t, os.Remove(h.Machine.File(instance.RecordFile)))
	assert.NoError(t, os.Rename(h.Machine.File("kept"), h.Machine.File(instance.RecordFile)))
	gone(t, d, spec)
	assert.ErrorIs(t, "Load of one that is gone", assert.ErrorOf(h.Load()), fs.ErrNotExist)
}

// TestCopiedFolder checks that a copy of a server's folder is neither that server again
// nor another one.
func TestCopiedFolder(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, other := e.spec(), e.spec()
	off(t, d, spec)
	copied := d.Host.InstanceOf(other.UID)
	assert.NoError(t, os.CopyFS(copied.Machine.Path, os.DirFS(d.Host.InstanceOf(spec.UID).Machine.Path)))
	servers, err := d.List(t.Context())
	assert.NoError(t, err)
	met := map[types.UID]driver.Server{}
	for _, s := range servers {
		met[s.UID] = s
	}
	assert.Require(t, len(servers) == 2 && met[spec.UID].Err == nil && met[spec.UID].ID != "" && met[other.UID].ID == "", "List reports %+v", servers)
	says := "repair " + copied.Machine.File(instance.RecordFile) + ": its uid is " + string(spec.UID)
	wantError(t, driver.Errorf(driver.ErrRetry, "%w", met[other.UID].Err), driver.ErrRetry, says, "must be "+string(other.UID))
	refuses(t, d, other, driver.ErrRetry, says)
	wantError(t, d.Delete(t.Context(), other.Target, false), driver.ErrRetry, says)
	assert.NoError(t, os.RemoveAll(copied.Machine.Path))
	assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
	servers, err = d.List(t.Context())
	assert.NoError(t, err)
	assert.True(t, len(servers) == 1 && servers[0].UID == spec.UID && servers[0].Retained && servers[0].Err == nil, "released, it is %+v", servers)
	leavesNothing(t, d)
}

// wantBroken checks that a broken server is listed with its error, and that every call
// refuses it.
func wantBroken(t *testing.T, d *Driver, spec driver.ServerSpec, name string, state driver.State) {
	t.Helper()
	servers, err := d.List(t.Context())
	assert.NoError(t, err)
	assert.Require(t, len(servers) == 1 && servers[0].UID == spec.UID && servers[0].ID == "" && servers[0].State == state, "%s: List reports %+v", name, servers)
	wantError(t, driver.Errorf(driver.ErrRetry, "%w", servers[0].Err), driver.ErrRetry, "repair", d.Host.InstanceOf(spec.UID).Machine.Path)
	assert.ErrorIs(t, name+": Usage says", assert.ErrorOf(d.Usage(t.Context(), spec.UID)), nil)
	refuses(t, d, spec, driver.ErrRetry, "repair")
	wantError(t, assert.ErrorOf(d.Logs(t.Context(), spec.UID, driver.LogOptions{})), driver.ErrRetry, "repair")
	for _, retain := range []bool{false, true} {
		wantError(t, d.Delete(t.Context(), spec.Target, retain), driver.ErrRetry, "repair")
	}
	on, err := d.Host.InstanceOf(spec.UID).Machine.IsRunning()
	assert.True(t, on == (state == driver.StateRunning) && err == nil, "%s: it runs: %v, %v", name, on, err)
}

// TestBrokenEnd checks that an end file damaged by a power cut still shows that there was
// an end.
func TestBrokenEnd(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := reach(t, d, spec, driver.StateRunning)
	e.sendText(t, s, "x")
	end := waitExit(t, d, spec.UID)
	assert.True(t, end.Reason == "Completed", "it ended with %+v", end)
	ends, err := filepath.Glob(d.Host.StateDir.Path(exits.Dir, "*"))
	assert.Require(t, err == nil && len(ends) == 1, "the ends are %q, %v", ends, err)
	for _, broken := range []string{"", "{", "{}", "null"} {
		assert.NoError(t, os.WriteFile(ends[0], []byte(broken), 0o600))
		end := waitExit(t, d, spec.UID)
		if again := waitExit(t, d, spec.UID); !again.At.Equal(end.At) || again.Reason != end.Reason || end.Code != exits.CodeKilled || end.Reason != "Killed" || end.At.IsZero() {
			t.Errorf("%q: it ended with %+v, and then with %+v", broken, end, again)
		}
	}
	off(t, d, spec)
}

// TestReleaseHalfDone checks that a released server still exists if its directory cannot be moved.
func TestReleaseHalfDone(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := off(t, d, spec)
	inTheWay := d.Host.RetainedPath(spec.UID, s.ID)
	assert.NoError(t, os.MkdirAll(filepath.Join(inTheWay, "x"), 0o700))
	for range 2 { // the first marks it, the second finds it marked
		wantError(t, d.Delete(t.Context(), spec.Target, true), driver.ErrRetry, "moving the directory")
	}
	refuses(t, d, spec, driver.ErrRetry, "moving the directory")
	assert.NoError(t, os.RemoveAll(inTheWay))
	wantError(t, d.Delete(t.Context(), spec.Target, true), driver.ErrNotFound)
	assert.True(t, !d.Host.InstanceAt(inTheWay).IsGone(), "it is not among the released")
}

// TestStrayBehindALink checks that the machine is found if its path is not the one that
// the driver was given.
func TestStrayBehindALink(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	assert.NoError(t, os.Mkdir(e.dir+".real", 0o700))
	assert.NoError(t, os.Symlink(e.dir+".real", e.dir))
	d := e.open(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	pid := h.Machine.PID()
	assert.NoError(t, os.RemoveAll(h.Machine.Path))
	wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrNotFound)
	assert.Eventually(t, "the machine ends", func(testing.TB) error {
		return assert.ErrorUnless(!proc.HasOption(pid, "-name", launch.NameOf(string(spec.UID))), "it runs")
	})
}

// TestRestoredFolder puts a copy of the folder, which knows of an earlier run, in the place of one
// whose machine runs. No second machine is started beside it: not while the other folder exists,
// which may be another engine's, and after that only once the first has ended.
func TestRestoredFolder(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	inst := d.Host.InstanceOf(spec.UID)
	backup, former := inst.Machine.Path+".backup", filepath.Join(t.TempDir(), string(spec.UID))
	assert.NoError(t, exec.CommandContext(t.Context(), "cp", "--archive", inst.Machine.Path, backup).Run())
	reach(t, d, spec, driver.StateRunning)
	pid := inst.Machine.PID()
	assert.NoError(t, errors.Join(os.Rename(inst.Machine.Path, former), os.Rename(backup, inst.Machine.Path)))
	refuses(t, d, spec, driver.ErrRetry, former, strconv.Itoa(pid))
	assert.NoError(t, os.RemoveAll(former))
	reach(t, d, spec, driver.StateRunning)
	assert.True(t, !proc.HasOption(pid, "-name", launch.NameOf(string(spec.UID))), "the machine whose folder is gone runs beside the other one")
}

// TestImageDirs checks that no image may be a file of Drover, through any link.
func TestImageDirs(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	in := func(names ...string) string { return filepath.Join(append([]string{base}, names...)...) }
	assert.NoError(t, os.MkdirAll(in("data", "qemu", "images"), 0o700))
	assert.NoError(t, os.Mkdir(in("elsewhere"), 0o700))
	assert.NoError(t, os.Symlink(in("data"), in("link")))
	for name, c := range map[string]struct {
		images, says string
	}{
		"relative":          {"images", `has "images": each must be the absolute path`},
		"empty":             {"", "each must be the absolute path"},
		"all of the host":   {"/", "must not hold, or be in"},
		"above":             {base, in("data", "qemu")},
		"the engine":        {in("data", "qemu"), in("data", "qemu")},
		"a machine":         {in("data", "qemu", "vms"), in("data", "qemu")},
		"unclean":           {in("data", "x") + "/../qemu/cache/", in("data", "qemu")},
		"the data dir":      {in("data"), in("data")},
		"in the data dir":   {in("data", "pki"), in("data")},
		"a link there":      {in("link", "qemu", "vms"), in("data", "qemu")},
		"images":            {in("data", "qemu", "images"), ""},
		"in images":         {in("data", "qemu", "images", "mine"), ""},
		"images by a link":  {in("link", "qemu", "images"), ""},
		"elsewhere":         {in("elsewhere"), ""},
		"not there yet":     {in("later", "on"), ""},
		"alike but another": {in("data.images"), ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Options{ClusterID: "c", Dir: in("data", "qemu"), Private: []string{in("data")}, ImageDirs: []string{in("elsewhere"), c.images}, MachineProgram: machineProgram})
			assert.True(t, (err != nil) == (c.says != "") && (err == nil || strings.Contains(err.Error(), c.says)), "got the error %v, want %q", err, c.says)
			assert.True(t, err == nil || (strings.Contains(err.Error(), "--qemu-image-dirs") && strings.Contains(err.Error(), strconv.Quote(c.images))),
				"the error %q does not name the flag and its value", err)
		})
	}
}

// inTheWay puts something that even root cannot read in the place of a file, and returns
// what puts the file back.
func inTheWay(t *testing.T, path string, put func(path string) error) (repair func()) {
	t.Helper()
	assert.NoError(t, os.Rename(path, path+".away"))
	assert.NoError(t, put(path))
	return func() {
		assert.NoError(t, os.Remove(path))
		assert.NoError(t, os.Rename(path+".away", path))
	}
}

func aFolder(path string) error { return os.Mkdir(path, 0o700) }

func aLoop(path string) error { return os.Symlink(filepath.Base(path), path) }

func listBoth(t *testing.T, d *Driver) map[types.UID]driver.Server {
	t.Helper()
	servers := listAnswering(t, d)
	found := map[types.UID]driver.Server{}
	for _, s := range servers {
		found[s.UID] = s
	}
	assert.Require(t, len(servers) == 2 && len(found) == 2, "listed: %+v", servers)
	return found
}

// recordOf returns the file in which a supervisor has recorded how a run ended.
func recordOf(h *instance.Instance) string { return h.ExitRecord().EndFile }

// TestOneUnreadable checks that a server with any unreadable part is listed, with the
// file's name, and does not hide the others. It is not reported as anything that it is
// not.
func TestOneUnreadable(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec, other := e.spec(), e.spec()
	reach(t, d, other, driver.StateRunning)
	was := reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	assert.NoError(t, h.Machine.Kill(t.Context()))
	waitExit(t, e.open(t), spec.UID) // which is not reported to d
	r, err := h.Load()
	assert.NoError(t, err)
	for name, c := range map[string]struct {
		files []string
		put   func(path string) error
		state driver.State
		id    string
	}{
		"the record":         {[]string{h.Machine.File(instance.RecordFile)}, aFolder, driver.StateStopped, ""},
		"the run lock":       {[]string{h.Machine.File(machine.RunLockFile)}, aLoop, driver.StateRunning, was.ID}, // it may be on
		"an end":             {[]string{recordOf(r)}, aFolder, driver.StateStopped, was.ID},
		"its whole folder":   {[]string{h.Machine.File(instance.RecordFile), h.Machine.File(machine.RunLockFile)}, aLoop, driver.StateRunning, ""},
		"an end, in a loop":  {[]string{recordOf(r)}, aLoop, driver.StateStopped, was.ID},
		"the lock, a folder": {[]string{h.Machine.File(machine.RunLockFile)}, aFolder, driver.StateRunning, was.ID},
	} {
		t.Run(name, func(t *testing.T) {
			for _, file := range c.files {
				defer inTheWay(t, file, c.put)()
			}
			for range 2 {
				found := listBoth(t, d)
				if s := found[other.UID]; s.State != driver.StateRunning || s.Err != nil {
					t.Errorf("the other is %+v", s)
				}
				s := found[spec.UID]
				assert.True(t, s.State == c.state && s.ID == c.id && s.Exit == nil, "it is %+v", s)
				wantError(t, driver.Errorf(driver.ErrRetry, "%w", s.Err), driver.ErrRetry, "repair", c.files[0])
			}
			refuses(t, d, spec, driver.ErrRetry, "repair", c.files[0])
			wantError(t, d.Delete(t.Context(), spec.Target, false), driver.ErrRetry, "repair", c.files[0])
			wantError(t, assert.ErrorOf(d.Console(t.Context(), spec.UID)), driver.ErrRetry, "repair", c.files[0])
			theirs, err := e.openAs(t, "cluster-2", e.dir).List(t.Context())
			assert.NoError(t, err)
			assert.True(t, len(theirs) == 1 == (c.id == ""), "another cluster sees %+v", theirs)
		})
	}
	s := ensure(t, d, spec)
	if s.State != driver.StateStopped || s.Exit == nil || s.Exit.Reason != "Killed" { // reported before it is started again
		t.Errorf("repaired, it is %+v", s)
	}
}
