// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// qcow2Of makes a qcow2 image of a raw one.
func (e *engine) qcow2Of(t *testing.T, raw, name string) string {
	t.Helper()
	path := filepath.Join(e.images, name)
	framework.RunQEMUImg(t, "convert", "-q", "-f", "raw", "-O", "qcow2", raw, path)
	return path
}

// swap replaces one file by another, with the size and time of the first.
func swap(t *testing.T, path, other string) {
	t.Helper()
	info, err := os.Stat(path)
	assert.NoError(t, err)
	assert.NoError(t, errors.Join(
		os.Truncate(other, info.Size()), os.Chtimes(other, info.ModTime(), info.ModTime()), os.Rename(other, path)))
}

// TestSwappedLayers checks that an image or a disk is not opened after it was swapped for
// one that points to another file, even with the same size and time.
func TestSwappedLayers(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	secret := filepath.Join(t.TempDir(), "signing.key")
	spec := e.spec()
	spec.Image.Source = e.qcow2Of(t, e.plain, "a.qcow2")
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: e.qcow2Of(t, e.plain, "b.qcow2")}}}
	boots(t, d, spec, "drover guest 1 A")
	off(t, d, spec)
	h := d.Host.InstanceOf(spec.UID)
	for n, c := range []struct{ layer, says string }{
		{spec.Image.Source, "was changed or replaced"},
		{spec.Volumes[0].Image.Source, "was changed or replaced"},
		{h.Machine.File(instance.RootDiskFile), "disk " + h.Machine.File(instance.RootDiskFile)},
		{h.Machine.File(instance.VolumeFile("data")), "disk " + h.Machine.File(instance.VolumeFile("data"))},
	} {
		for kind, options := range map[string][]string{
			"data file":    {"-o", "data_file=" + secret + ",data_file_raw=on"},
			"backing file": {"-F", "raw", "-b", secret},
		} {
			if kind == "backing file" && n >= 2 {
				continue // which disks have, and QEMU does not follow
			}
			assert.NoError(t, os.WriteFile(secret, make([]byte, 1<<20), 0o600))
			evil := filepath.Join(e.images, "evil.qcow2")
			framework.RunQEMUImg(t, append(append([]string{"create", "-q", "-f", "qcow2"}, options...), evil, "1M")...)
			assert.NoError(t, os.Rename(c.layer, c.layer+".kept"))
			assert.NoError(t, os.Link(c.layer+".kept", c.layer))
			swap(t, c.layer, evil)
			refuses(t, d, spec, driver.ErrRetry, c.says, kind, driver.ReasonImageUnavailable)
			assert.NoError(t, os.Rename(c.layer+".kept", c.layer))
		}
	}
	boots(t, d, spec, "drover guest 2 A")
}

// TestSwappedAfterTheCheck checks that QEMU gets what was checked, whatever its path
// leads to when QEMU starts. No disk and no image is on its command line.
func TestSwappedAfterTheCheck(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	image, volume := e.qcow2Of(t, e.plain, "a.qcow2"), e.qcow2Of(t, e.plain, "b.qcow2")
	o := e.options()
	o.Binary = framework.QEMUScript(t, fmt.Sprintf(`case $1 in -nodefaults) for f in '%s' '%s' root.qcow2 volume-data.qcow2 volume-tools.qcow2; do
		mv "$f" "$f.away" && echo swapped > "$f"; done;; esac; exec %s "$@"`, image, volume, DefaultBinary))
	o.User, o.UserIDs = "", "" // so that it can
	d := openWith(t, o)
	spec := e.spec()
	spec.Image.Source, spec.RootDiskBytes = image, 2<<20
	spec.Volumes = []driver.Volume{
		{Name: "data", SizeBytes: 2 << 20, Image: &driver.Image{Source: volume}},
		{Name: "tools", SizeBytes: 2 << 20, Image: &driver.Image{Source: volume}, ReadOnly: true},
	}
	boots(t, d, spec, "drover guest 1 A")
	h := d.Host.InstanceOf(spec.UID)
	line := framework.ReadFile(t, proc.Path(h.Machine.PID(), "cmdline"))
	for _, name := range []string{image, volume, ".qcow2"} {
		assert.True(t, !strings.Contains(line, name), "QEMU opens %s by its name: %q", name, line)
	}
	var nodes []struct {
		Name     string `json:"node-name"`
		ReadOnly bool   `json:"ro"`
	}
	assert.NoError(t, h.Machine.Execute(t.Context(), "query-named-block-nodes", launch.Object{"flat": true}, &nodes))
	readOnly := map[string]bool{}
	for _, n := range nodes {
		readOnly[n.Name] = n.ReadOnly
	}
	assert.True(t, !readOnly[launch.RootNode] && !readOnly[launch.VolumeNode("data")] && readOnly[launch.VolumeNode("tools")], "read-only are %v", readOnly)

	// A newer controller takes it over, and grows it.
	d = e.open(t)
	spec.RootDiskBytes, spec.Volumes[0].SizeBytes = 4<<20, 4<<20
	s := reach(t, d, spec, driver.StateRunning)
	assert.True(t, s.Applied.RootDiskBytes == 4<<20, "grown it is %+v", s)
	wantDisk(t, d, spec, instance.RootDiskFile+".away", 4<<20)
	wantDisk(t, d, spec, instance.VolumeFile("data")+".away", 4<<20)
}

// TestSwappedKernel checks that QEMU boots the kernel and the initrd that Drover opened,
// whatever their paths lead to when QEMU starts.
func TestSwappedKernel(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	spec := e.linuxSpec(t)
	spec.Power = driver.PowerPaused // QEMU has read them by then
	files := []string{spec.Image.Kernel.Source, spec.Image.Kernel.Initrd}
	o := e.options()
	o.Binary = framework.QEMUScript(t, fmt.Sprintf(`case $1 in -nodefaults) for f in '%s' '%s'; do
		mv "$f" "$f.away"; done;; esac; exec %s "$@"`, files[0], files[1], DefaultBinary))
	o.User, o.UserIDs = "", "" // so that it can
	d := openWith(t, o)
	reach(t, d, spec, driver.StatePaused)
	line := framework.ReadFile(t, proc.Path(d.Host.InstanceOf(spec.UID).Machine.PID(), "cmdline"))
	for _, name := range files {
		assert.True(t, !strings.Contains(line, name), "QEMU opens %s by its name: %q", name, line)
	}
}

// TestInheritedDescriptors checks that QEMU has its run lock, its logs, its sockets and its
// disks open, and beside what it makes itself nothing else, and that its sockets are for
// this user alone.
func TestInheritedDescriptors(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	assert.NoError(t, assert.ErrorOf(unix.Dup(int(os.Stderr.Fd())))) // as from a parent that does not close what its children do not need
	spec := e.spec()
	spec.Volumes = []driver.Volume{{Name: "data", SizeBytes: 2 << 20}}
	boots(t, d, spec, "drover guest 1 A")
	h := d.Host.InstanceOf(spec.UID)
	want := map[string]bool{e.plain: true}
	for _, name := range []string{
		machine.RunLockFile, machine.LogFile, machine.SerialLogFile, machine.SeedFile, instance.RootDiskFile, instance.VolumeFile("data"),
	} {
		want[h.Machine.File(name)] = true
	}
	got := openFiles(t, h.Machine.PID())
	assert.True(t, maps.Equal(got, want), "QEMU has open %v, want %v", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	status, err := os.ReadFile(proc.Path(h.Machine.PID(), "status"))
	assert.True(t, err == nil && strings.Contains(string(status), "NoNewPrivs:\t1"), "QEMU can gain privileges: %s, %v", status, err)
	for _, socket := range []string{machine.ControlSocket, machine.EventsSocket, machine.SerialSocket, machine.AgentSocket} {
		info, err := os.Stat(h.Machine.File(socket))
		assert.True(t, err == nil && info.Mode() == os.ModeSocket|0o600, "%s is %v, %v", socket, info.Mode(), err)
	}
}

// openFiles returns the files that a process has open, apart from those without a path.
func openFiles(t *testing.T, pid int) map[string]bool {
	t.Helper()
	entries, err := os.ReadDir(proc.Path(pid, "fd"))
	assert.NoError(t, err)
	files := map[string]bool{}
	for _, entry := range entries {
		path, err := os.Readlink(filepath.Join(proc.Path(pid, "fd"), entry.Name()))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		assert.NoError(t, err)
		if path != os.DevNull && !noPath.MatchString(path) {
			files[path] = true
		}
	}
	return files
}

// noPath matches what QEMU makes without a path. A pipe would be its caller's.
var noPath = regexp.MustCompile(`^(socket:|anon_inode:\[(eventfd|signalfd|eventpoll|io_uring)\]|/memfd:)`)
