// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// daemon is a Docker engine for one test, which the test can stop and start.
type daemon struct {
	dir     string
	process *exec.Cmd
	output  bytes.Buffer
}

// newDaemon starts an engine in a separate network namespace, where it does not share its bridge
// with another.
func newDaemon(t *testing.T) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the test starts an engine, which needs root")
	}
	dir, err := os.MkdirTemp("", "drover-dockerd-") //nolint:usetesting // t.TempDir may be too long for a socket
	assert.NoError(t, err)
	d := &daemon{dir: dir}
	t.Cleanup(func() {
		d.stop(t)
		unmountBelow(t, dir)
		assert.NoError(t, os.RemoveAll(dir))
	})
	d.start(t)
	return d
}

// unmountBelow unmounts what an engine that was killed has left mounted.
func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	mounts := framework.ReadFile(t, "/proc/self/mounts")
	for line := range strings.Lines(mounts) {
		if at := strings.Fields(line)[1]; strings.HasPrefix(at, dir+"/") {
			_ = syscall.Unmount(at, syscall.MNT_DETACH)
		}
	}
}

func (d *daemon) host() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

func (d *daemon) start(t *testing.T) {
	t.Helper()
	d.process = exec.Command("dockerd", "--host", d.host(), "--data-root", filepath.Join(d.dir, "data"), //nolint:noctx // stopped by the test with a signal
		"--exec-root", filepath.Join(d.dir, "exec"), "--pidfile", filepath.Join(d.dir, "pid"),
		"--iptables=false", "--ip6tables=false", "--userland-proxy=false")
	d.process.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET}
	d.process.Stdout, d.process.Stderr = &d.output, &d.output
	err := d.process.Start()
	assert.Require(t, err == nil, "starting an engine, which hack/dockerd.sh installs: %v", err)
	c := d.client(t)
	assert.Eventually(t, "the engine of this test", func(testing.TB) error {
		_, err := c.Ping(t.Context(), client.PingOptions{})
		return err
	})
}

// stop ends the engine and with it, unlike a lost connection, all of its
// containers.
func (d *daemon) stop(t *testing.T) {
	t.Helper()
	if d.process == nil {
		return
	}
	_ = d.process.Process.Signal(syscall.SIGTERM)
	err := d.process.Wait()
	assert.True(t, err == nil, "the engine ended with %v: %s", err, d.output.String())
	d.process = nil
}

// kill ends the engine as a crash does. Its containers run on, and end when it starts again.
// The engine may leave it at that, so that who controls it has to start them.
func (d *daemon) kill(t *testing.T) {
	t.Helper()
	assert.NoError(t, d.process.Process.Kill())
	_ = d.process.Wait()
	d.process = nil
	// Its containerd ends with it. A dead process that no one has waited for is taken for alive.
	assert.NoError(t, os.Remove(filepath.Join(d.dir, "exec", "containerd", "containerd.pid")))
}

func (d *daemon) client(t *testing.T) *client.Client {
	t.Helper()
	c, err := client.New(client.WithHost(d.host()))
	assert.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestEngineRestart ends and starts the engine. Running servers run again, after a crash of
// the engine at the latest by Ensure, stopped ones stay off, and nothing is created twice.
func TestEngineRestart(t *testing.T) {
	tier.Full(t, "it starts two engines, twice each; the contract's LoseEngine keeps the loss of a connection")
	t.Parallel()
	t.Run("stopped", func(t *testing.T) { testEngineRestart(t, false) })
	t.Run("killed", func(t *testing.T) { testEngineRestart(t, true) })
}

func testEngineRestart(t *testing.T, crashed bool) {
	t.Helper()
	g := guestImages(t)
	engine := newDaemon(t)
	assert.NoError(t, framework.ImportGuests(t.Context(), engine.client(t)))
	d := newDriver(t, Options{Host: engine.host(), CallTimeout: kit.DefaultCallTimeout}) // an engine that starts may never answer a call
	id, err := d.EngineID(t.Context())
	assert.NoError(t, err)
	on, off, never := newSpec(t, d, g.plain), newSpec(t, d, g.plain), newSpec(t, d, g.plain)
	t.Cleanup(func() { deleteServers(t, d) })
	before := map[types.UID]driver.Server{}
	for _, spec := range []*driver.ServerSpec{&on, &off, &never} {
		spec.RestartPolicy = driver.RestartAlways
		if spec == &never {
			spec.Power = driver.PowerOff
		} else {
			ensureState(t, d, *spec, driver.StateRunning)
		}
		before[spec.UID] = mustEnsure(t, d, *spec)
	}
	off.Power, off.StopBy = driver.PowerOff, time.Now().Add(time.Hour)
	before[off.UID] = ensureState(t, d, off, driver.StateStopped)
	events, err := d.Watch(t.Context())
	assert.NoError(t, err)

	if crashed {
		engine.kill(t)
	} else {
		engine.stop(t)
	}
	drivertest.WaitForClose(t, events, "the engine was lost")
	for range 3 {
		wantError(t, assert.ErrorOf(d.List(t.Context())), driver.ErrUnavailable, "", engine.host())
		wantError(t, assert.ErrorOf(d.Ensure(t.Context(), on)), driver.ErrUnavailable, "", engine.host())
	}

	engine.start(t)
	again, err := d.EngineID(t.Context())
	assert.NoError(t, err)
	assert.Equal(t, "the engine's id was "+id+" and", again, id)
	if crashed {
		ensureState(t, d, on, driver.StateRunning)
	}
	s := awaitListed(t, d, on.UID, "what ran running again", func(s driver.Server) bool { return s.State == driver.StateRunning })
	assert.True(t, s.ID == before[on.UID].ID && s.Run != before[on.UID].Run, "it is %+v, want another run of %+v", s, before[on.UID])
	checkStopped(t, d, before, on.UID)
}

// checkStopped checks that the earlier servers are there, and that all but one are off as they were.
func checkStopped(t *testing.T, d *Driver, before map[types.UID]driver.Server, running types.UID) {
	t.Helper()
	all := mustList(t, d)
	assert.True(t, len(all) == len(before), "List shows %+v, want the %d earlier servers", all, len(before))
	for _, s := range all {
		was := before[s.UID]
		assert.True(t, s.UID == running || (s.State == driver.StateStopped && s.ID == was.ID && s.Run == was.Run), "it is %+v, want it as before: %+v", s, was)
	}
}

func deleteServers(t *testing.T, d *Driver) {
	ctx := context.WithoutCancel(t.Context())
	assert.Eventually(t, "the clean-up", func(testing.TB) error {
		all, err := d.List(ctx)
		for _, s := range all {
			_ = d.Delete(ctx, driver.Target{UID: s.UID}, false)
		}
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("there are %d servers", len(all))
		}
		return err
	})
}
