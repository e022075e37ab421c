// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu"
	"cloudnative.tw/drover/internal/driver/registry"
	"cloudnative.tw/drover/internal/machine/launch"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/engines"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// testHost is a data dir that had machines, with a stopped Drover and an image.
type testHost struct {
	driver.Driver

	data, machines, image string
}

func newTestHost(t *testing.T) *testHost {
	t.Helper()
	framework.QEMUBinary(t)
	h := &testHost{data: filepath.Join(framework.ShortTempDir(t), "d"), image: framework.BuildBootGuest(t, t.TempDir(), "A", false)}
	dir, err := datadir.Open(h.data)
	assert.NoError(t, err)
	assert.NoError(t, dir.SetClusterID("cluster-1"))
	h.machines = filepath.Join(dir.Drivers(), "qemu")
	o := registry.Options{
		Settings:    registry.DefaultSettings(),
		Environment: driver.Environment{ClusterID: "cluster-1", Clock: clock.RealClock{}, Log: logr.Discard()},
	}
	own := o.Settings[qemu.Name].(*qemu.Options)
	own.Dir, own.Accel, own.ImageDirs, own.UncheckedImages = h.machines, "tcg", []string{filepath.Dir(h.image)}, true
	own.Fetch.Hosts, own.MachineProgram = []string{"127.0.0.1"}, filepath.Join(t.TempDir(), "drover-machine")
	assert.NoError(t, framework.BuildMachine(own.MachineProgram))
	_, err = engines.Choose(t.Context(), dir.Engines(), "qemu", nil, o)
	assert.NoError(t, err)
	assert.NoError(t, dir.Close())
	opened, err := registry.Open(t.Context(), "qemu", o)
	assert.NoError(t, err)
	h.Driver = opened[0].Driver
	return h
}

// startMachine starts a machine.
func (h *testHost) startMachine(t *testing.T, name, image string) (target driver.Target, pid string) {
	t.Helper()
	spec := driver.ServerSpec{
		Target:    driver.Target{UID: uuid.NewUUID(), Epoch: 1},
		Namespace: "default", Name: name, Power: driver.PowerOn, RestartPolicy: driver.RestartNever,
		CPUMilli: 1000, MemoryBytes: 16 << 20, Image: driver.Image{Source: image},
	}
	t.Cleanup(func() { h.killMachine(t, spec.UID) })
	assert.Eventually(t, name+" runs", func(t testing.TB) error {
		s, err := h.Ensure(t.Context(), spec)
		if err == nil && s.State != driver.StateRunning {
			err = errors.New(string(s.State) + " " + s.Progress)
		}
		return err
	})
	content, err := os.ReadFile(filepath.Join(h.machines, "vms", string(spec.UID), "pid"))
	assert.NoError(t, err)
	return driver.Target{UID: spec.UID}, strings.TrimSpace(string(content))
}

// killMachine ends the machine, whatever a test did.
func (h *testHost) killMachine(t *testing.T, uid types.UID) {
	t.Helper()
	pids, _ := filepath.Glob("/proc/[0-9]*")
	for _, path := range pids {
		line, _ := os.ReadFile(filepath.Join(path, "cmdline"))
		if !bytes.Contains(line, []byte("\x00-name\x00"+launch.NameOf(string(uid))+"\x00")) {
			continue
		}
		killProcess(t, filepath.Base(path))
	}
}

func killProcess(t *testing.T, pid string) {
	t.Helper()
	number, err := strconv.Atoi(pid)
	assert.NoError(t, err)
	if err := syscall.Kill(number, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Error(err)
	}
}

// runDrover runs a command, and returns its output.
func runDrover(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := Program{}.newRootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	err := root.ExecuteContext(t.Context())
	return out.String(), err
}

func isRunning(pid string) bool {
	line, err := os.ReadFile(filepath.Join("/proc", pid, "cmdline"))
	return err == nil && len(line) > 0
}

// TestPurge checks that running machines are ended and completely removed, while released
// ones run on and keep their disks.
func TestPurge(t *testing.T) {
	h := newTestHost(t)
	var pids []string
	for _, name := range []string{"one", "two"} {
		_, pid := h.startMachine(t, name, h.image)
		pids = append(pids, pid)
	}
	released, kept := h.startMachine(t, "kept", h.image)
	assert.NoError(t, h.Delete(t.Context(), released, true))
	assert.ErrorIs(t, "a server that was released", h.Delete(t.Context(), released, true), driver.ErrNotFound)

	out, err := runDrover(t, "purge", "--yes", "--data", "--data-dir", h.data)
	assert.True(t, err != nil && strings.Contains(err.Error(), "the data stays") && strings.Contains(out, "Removed: 2 servers."),
		"it printed %s, and failed with %v", out, err)
	for _, pid := range pids {
		assert.True(t, !isRunning(pid), "machine %s runs", pid)
	}
	assert.True(t, isRunning(kept), "the machine that was released does not run")
	for _, sub := range []string{"vms", "bells", "ends", "locks", "tmp"} {
		left, err := os.ReadDir(filepath.Join(h.machines, sub))
		assert.True(t, err == nil && len(left) == 0, "left in %s: %v, %v", sub, left, err)
	}

	killProcess(t, kept)
	assert.Eventually(t, "it ends", func(testing.TB) error {
		return assert.ErrorUnless(!isRunning(kept), "it runs")
	})
	assert.NoError(t, os.RemoveAll(filepath.Join(h.machines, "retained")))
	out, err = runDrover(t, "purge", "--yes", "--data", "--data-dir", h.data)
	assert.True(t, err == nil, "it printed %s, and failed with %v", out, err)
	assert.ErrorIs(t, "the data dir", assert.ErrorOf(os.Stat(h.data)), fs.ErrNotExist)
}

// TestImageCommands checks that the commands work while Drover holds its data dir.
func TestImageCommands(t *testing.T) {
	h := newTestHost(t)
	held, err := datadir.Open(h.data)
	assert.NoError(t, err)
	defer func() { _ = held.Close() }()
	assertOutput(t, "No images.\n", "image", "list", "--data-dir", h.data)
	assertOutput(t, "No images to remove.\n", "image", "prune", "--data-dir", h.data)
	web := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(h.image))))
	t.Cleanup(web.Close)
	source := web.URL + "/" + filepath.Base(h.image)
	target, _ := h.startMachine(t, "vm", source)

	for _, place := range [][]string{{"--data-dir", h.data}, {"--data-dir", t.TempDir(), "--qemu-dir", h.machines}} {
		out, err := runDrover(t, append([]string{"image", "list"}, place...)...)
		lines := strings.Split(out, "\n")
		assert.Require(t, err == nil && len(lines) == 3 && strings.HasPrefix(lines[0], "DIGEST "), "%v: it printed %q, %v", place, out, err)
		for _, want := range []string{"sha256:", " 1.0 MB ", " default/vm ", source} {
			assert.True(t, strings.Contains(lines[1], want), "%q lacks %q", lines[1], want)
		}
	}
	assertOutput(t, "No images to remove.\n", "image", "prune", "--data-dir", h.data)
	assert.NoError(t, h.Delete(t.Context(), target, false))
	out, err := runDrover(t, "image", "prune", "--data-dir", h.data)
	assert.True(t, err == nil && strings.Contains(out, source) && strings.HasSuffix(out, "Removed: 1, 1.0 MB.\n"), "it printed %q, %v", out, err)
	assertOutput(t, "No images.\n", "image", "list", "--data-dir", h.data)
	assert.ErrorSays(t, "of another folder", assert.ErrorOf(runDrover(t, "image", "list", "--data-dir", t.TempDir())), "is not a Drover data dir")
}

func assertOutput(t *testing.T, want string, args ...string) {
	t.Helper()
	out, err := runDrover(t, args...)
	assert.True(t, err == nil && out == want, "%q printed %q, %v; want %q", args, out, err, want)
}

// startFakeDockerd answers like a Docker engine without containers.
func startFakeDockerd(t *testing.T, id string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.44")
		w.Header().Set("Content-Type", "application/json")
		answer := "{}"
		switch {
		case strings.HasSuffix(r.URL.Path, "/info"):
			answer = fmt.Sprintf(`{"ID": %q}`, id)
		case strings.HasSuffix(r.URL.Path, "/containers/json"):
			answer = "[]"
		}
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return "tcp://" + s.Listener.Addr().String()
}

// TestPurgeOfAnotherEngine checks that the data stays as long as a Docker engine answers that
// is not the one that was used: only the data proves which servers belong to it.
func TestPurgeOfAnotherEngine(t *testing.T) {
	used, other := startFakeDockerd(t, "USED"), startFakeDockerd(t, "OTHER")
	for name, c := range map[string]struct {
		known, host string
		flags       []string
		refused     string
	}{
		"the same":          {`[{"driver": "docker", "engineID": "USED"}]`, used, nil, ""},
		"another":           {`[{"driver": "docker", "engineID": "USED"}]`, other, nil, "docker/USED does not answer, but another engine in its place: docker/OTHER"},
		"none":              {`[{"driver": "docker", "engineID": "USED"}]`, "unix:///none.sock", nil, "docker/USED cannot be asked for its servers"},
		"another, given up": {`[{"driver": "docker", "engineID": "USED"}]`, other, []string{"--skip-engine", "docker/USED"}, ""},
		"one of two":        {`[{"driver": "docker", "engineID": "USED"}, {"driver": "docker", "engineID": "OTHER"}]`, used, nil, "docker/OTHER does not answer"},
		"no id is known":    {`[{"driver": "docker"}]`, used, nil, "docker/unknown: the ID of the engine that was used is unknown"},
		"no id, given up":   {`[{"driver": "docker"}]`, used, []string{"--skip-engine", "docker/unknown"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("DOCKER_HOST", c.host)
			path := filepath.Join(t.TempDir(), "d")
			dir, err := datadir.Open(path)
			assert.NoError(t, err)
			assert.NoError(t, dir.SetClusterID("cluster-1"))
			assert.NoError(t, os.WriteFile(dir.Engines(), []byte(c.known), 0o600))
			assert.NoError(t, dir.Close())
			out, err := runDrover(t, append([]string{"purge", "--yes", "--data-dir", path}, c.flags...)...)
			assert.True(t, err != nil || strings.Contains(out, c.refused), "without --data it printed %q, want %q", out, c.refused)
			_, err = runDrover(t, append([]string{"purge", "--yes", "--data", "--data-dir", path}, c.flags...)...)
			assert.ErrorSays(t, name, err, c.refused)
			_, err = os.Stat(path)
			assert.True(t, (err == nil) == (c.refused != ""), "the data dir: %v", err)
		})
	}
}

// TestMachinesShutdown checks that the command is refused while a Drover runs, which would
// restart the machines. Otherwise it ends them and names them.
func TestMachinesShutdown(t *testing.T) {
	h := newTestHost(t)
	target, pid := h.startMachine(t, "vm", h.image)
	held, err := datadir.Open(h.data)
	assert.NoError(t, err)
	out, err := runDrover(t, "machines", "shutdown", "--data-dir", h.data)
	assert.True(t, err != nil && strings.Contains(err.Error(), "stop it first") && isRunning(pid), "while Drover runs it printed %q, %v", out, err)
	assert.NoError(t, held.Close())
	assertOutput(t, "default/vm: ended by force, since its guest did not power off in time\n", "machines", "shutdown", "--timeout", "0s", "--data-dir", h.data)
	assert.True(t, !isRunning(pid), "the machine runs")
	servers, err := h.List(t.Context(), target.UID)
	assert.True(t, err == nil && len(servers) == 1 && servers[0].Exit != nil && servers[0].Exit.Reason == driver.ExitHostShutdown, "it lists %+v, %v", servers, err)
	assertOutput(t, "No machines run.\n", "machines", "shutdown", "--data-dir", h.data)
	assert.ErrorSays(t, "of another folder", assert.ErrorOf(runDrover(t, "machines", "shutdown", "--data-dir", t.TempDir())), "is not a Drover data dir")
}
