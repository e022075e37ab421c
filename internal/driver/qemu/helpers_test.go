// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/installation"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// engine is a folder for servers, and the images beside it.
type engine struct {
	dir, images            string
	plain, other, stubborn string
}

// newEngine makes an engine whose servers are removed at the end of the test.
func newEngine(t *testing.T) *engine {
	t.Helper()
	framework.QEMUBinary(t)
	dir := framework.ShortTempDir(t)
	t.Cleanup(func() { endMachines(t, dir) })
	e := &engine{dir: filepath.Join(dir, "engine"), images: filepath.Join(dir, "images")}
	assert.NoError(t, os.Mkdir(e.images, 0o700))
	e.plain = framework.BuildBootGuest(t, e.images, "A", false)
	e.other = framework.BuildBootGuest(t, e.images, "B", false)
	e.stubborn = framework.BuildBootGuest(t, e.images, "S", true)
	t.Cleanup(func() { e.removeServers(t) })
	return e
}

// removeServers removes the servers that can be read, and checks that nothing is left of them.
func (e *engine) removeServers(t *testing.T) {
	d := e.open(t)
	servers, err := d.List(context.WithoutCancel(t.Context()))
	assert.NoError(t, err)
	for _, s := range servers {
		if s.ID == "" || s.Retained {
			continue
		}
		gone(t, d, driver.ServerSpec{Target: driver.Target{UID: s.UID}})
		for _, sub := range []string{instance.VMsDir, exits.Dir, "locks"} {
			if left, err := filepath.Glob(d.Host.StateDir.Path(sub, string(s.UID)+"*")); err != nil || len(left) > 0 {
				t.Errorf("of server %s is left %q, %v", s.UID, left, err)
			}
		}
	}
}

// endMachines ends the machines that a failed test has left running below a folder. A broker ends by itself.
func endMachines(t *testing.T, dir string) {
	t.Helper()
	below := func(pid int) bool {
		cwd, err := os.Readlink(proc.Path(pid, "cwd"))
		return err == nil && strings.HasPrefix(cwd, dir+"/") && !isEnding(pid)
	}
	for _, pid := range proc.IDs() {
		switch {
		case !below(pid) || pid == os.Getpid():
		case proc.HasOption(pid, installation.MachineOption, instance.BrokerDir):
			assert.Eventually(t, "the broker ends", func(t testing.TB) error {
				assert.True(t, !below(pid), "process %d runs", pid)
				return nil
			})
		default:
			t.Errorf("a machine was left running: process %d", pid)
			assert.NoError(t, proc.Kill(context.Background(), pid, below))
		}
	}
}

// isEnding reports whether a process is ending. Such a process loses its memory, and with
// it its command line, just before it leaves its working directory.
func isEnding(pid int) bool {
	line, err := os.ReadFile(proc.Path(pid, "cmdline"))
	return err != nil || len(line) == 0
}

func (e *engine) options() Options {
	return Options{
		ClusterID: "cluster-1", Dir: e.dir, ImageDirs: []string{e.images}, Accel: machine.AccelTCG, User: machineUser(), UserIDs: launch.DefaultUserIDs,
		Fetch: image.Policy{Hosts: []string{"127.0.0.1"}}, MachineProgram: machineProgram,
	}
}

// machineUser returns the user of machines if the tests run as root.
func machineUser() string {
	if os.Geteuid() == 0 {
		return launch.DefaultUser
	}
	return ""
}

func (e *engine) open(t *testing.T) *Driver {
	t.Helper()
	return openWith(t, e.options())
}

// openBinary returns a driver whose machines a program in place of QEMU runs.
func (e *engine) openBinary(t *testing.T, binary string) *Driver {
	t.Helper()
	o := e.options()
	o.Binary = binary
	return openWith(t, o)
}

// newDriver returns an engine and a driver of it.
func newDriver(t *testing.T) (*engine, *Driver) {
	t.Helper()
	e := newEngine(t)
	return e, e.open(t)
}

// openFor returns a driver that also takes images of a registry that the test runs, by
// tag.
func (e *engine) openFor(t *testing.T, registry string) *Driver {
	t.Helper()
	o := e.options()
	o.Fetch.PlainHTTP, o.UncheckedImages = []string{registry}, true
	return openWith(t, o)
}

func openWith(t *testing.T, o Options) *Driver {
	t.Helper()
	d, err := New(o)
	assert.NoError(t, err)
	return d
}

func (e *engine) spec() driver.ServerSpec {
	return driver.ServerSpec{
		Target:    driver.Target{UID: uuid.NewUUID(), Epoch: 1},
		Namespace: "default", Name: "test-vm", Power: driver.PowerOn, RestartPolicy: driver.RestartNever,
		CPUMilli: 1000, MemoryBytes: 16 << 20, Image: driver.Image{Source: e.plain},
	}
}

// reach repeats Ensure until the server is in a state, by another run than the one that
// is to end.
func reach(t *testing.T, d driver.Driver, spec driver.ServerSpec, want driver.State) driver.Server {
	t.Helper()
	var s driver.Server
	assert.Eventually(t, "Ensure reaches "+string(want), func(t testing.TB) (err error) {
		s, err = d.Ensure(t.Context(), spec)
		if err == nil && (s.State != want || want == driver.StateRunning && spec.RestartRun != "" && s.Run == spec.RestartRun) {
			err = stateError(s)
		}
		return err
	})
	return s
}

// ensure calls Ensure once.
func ensure(t *testing.T, d driver.Driver, spec driver.ServerSpec) driver.Server {
	t.Helper()
	s, err := d.Ensure(t.Context(), spec)
	assert.NoError(t, err)
	return s
}

// refuses checks the error of Ensure.
func refuses(t *testing.T, d driver.Driver, spec driver.ServerSpec, kind error, says ...string) {
	t.Helper()
	wantError(t, assert.ErrorOf(d.Ensure(t.Context(), spec)), kind, says...)
}

type stateError driver.Server

func (s stateError) Error() string { return "it is " + string(s.State) + ": " + s.Progress }

// boots runs a server, and waits until its guest prints a text.
func boots(t *testing.T, d *Driver, spec driver.ServerSpec, text string) driver.Server {
	t.Helper()
	s := reach(t, d, spec, driver.StateRunning)
	waitPrinted(t, d.Host.InstanceOf(spec.UID), text)
	return s
}

// waitPrinted waits until the guest has printed a text.
func waitPrinted(t *testing.T, h *instance.Instance, text string) {
	t.Helper()
	assert.Eventually(t, "the guest prints "+text, func(testing.TB) error {
		content, err := os.ReadFile(h.Machine.File(machine.SerialLogFile))
		if err == nil && !strings.Contains(string(content), text) {
			err = textError(content)
		}
		return err
	})
}

// listAnswering lists servers until all of their QEMUs answer: a list does not wait for long for one
// that a busy host keeps waiting.
func listAnswering(t *testing.T, d *Driver, uids ...types.UID) (servers []driver.Server) {
	t.Helper()
	assert.Eventually(t, "each QEMU answers", func(t testing.TB) (err error) {
		servers, err = d.List(t.Context(), uids...)
		assert.NoError(t, err)
		for _, s := range servers {
			if s.Err != nil && strings.Contains(s.Err.Error(), "QEMU does not answer") {
				return s.Err
			}
		}
		return nil
	})
	return servers
}

type textError string

func (e textError) Error() string { return "it printed " + string(e) }

// gone deletes a server until nothing is left of it.
func gone(t *testing.T, d *Driver, spec driver.ServerSpec) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	assert.Eventually(t, "a deletion succeeds", func(testing.TB) error {
		if err := d.Delete(ctx, spec.Target, false); !errors.Is(err, driver.ErrNotFound) {
			return err
		}
		return nil
	})
	assert.True(t, d.Delete(ctx, driver.Target{UID: spec.UID}, false) != nil, "Delete does not say that nothing is left")
}

// macOf returns the MAC address in the record of a server.
func macOf(t testing.TB, d *Driver, spec driver.ServerSpec) string {
	t.Helper()
	inst, err := d.Host.InstanceOf(spec.UID).Load()
	assert.NoError(t, err)
	return inst.MAC
}
