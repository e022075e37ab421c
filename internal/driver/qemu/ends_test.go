// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/test/assert"
)

// TestExitIsReported checks that the call which finds an unknown end reports it, and that the
// machine is started again only then.
func TestExitIsReported(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	for name, c := range map[string]struct {
		end    func(t *testing.T, h *instance.Instance, s driver.Server)
		reason string
	}{
		"shut down": {func(t *testing.T, h *instance.Instance, s driver.Server) {
			t.Helper()
			e.sendText(t, s, "x")
			waitStopped(t, h)
		}, "Completed"},
		"killed": {func(t *testing.T, h *instance.Instance, _ driver.Server) {
			t.Helper()
			assert.NoError(t, h.Machine.Kill(t.Context()))
		}, "Killed"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			h := d.Host.InstanceOf(spec.UID)
			first := boots(t, d, spec, "drover guest 1 A")
			c.end(t, h, first)
			s := ensure(t, d, spec)
			assert.True(t, s.State == driver.StateStopped && s.Run == first.Run && s.Exit != nil && s.Exit.Reason == c.reason, "it is %+v", s)
			if on, err := h.Machine.IsRunning(); on || err != nil {
				t.Errorf("its QEMU runs: %v, %v", on, err)
			}
			second := ensure(t, d, spec)
			assert.True(t, second.State == driver.StateRunning && second.Run != first.Run, "started again it is %+v", second)

			waitPrinted(t, d.Host.InstanceOf(spec.UID), "drover guest 2 A")
			c.end(t, h, second)
			restart := spec
			restart.RestartRun = second.Run
			third, err := d.Ensure(t.Context(), restart) // a restart asks for a start, however the run ended
			assert.NoError(t, err)
			assert.True(t, third.State == driver.StateRunning && third.Run != second.Run, "restarted it is %+v", third)
		})
	}
}

// TestOneStartPerCall checks that a guest which ends as soon as it was resumed is not
// started again by the same call.
func TestOneStartPerCall(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o := e.options()
	spec := e.spec()
	var d *Driver
	ends := 0
	o.Log = funcr.New(func(_, text string) {
		// The last log line before the driver observes the result of a step.
		if !strings.Contains(text, "Notification could not be written") {
			return
		}
		if status, err := d.Host.InstanceOf(spec.UID).Machine.Status(t.Context()); err == nil && status == "running" {
			ends++
			assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
		}
	}, funcr.Options{Verbosity: 1})
	d = openWith(t, o)
	off(t, d, spec)
	notifications := d.Host.StateDir.Path(instance.NotificationsDir)
	assert.NoError(t, os.RemoveAll(notifications))
	assert.NoError(t, os.WriteFile(notifications, nil, 0o600))
	s := ensure(t, d, spec)
	assert.True(t, s.State == driver.StateStopped && s.Exit != nil && s.Exit.Reason == "Killed" && ends == 1, "it was started %d times and is %+v", ends, s)
	assert.NoError(t, os.Remove(notifications))
	assert.NoError(t, os.Mkdir(notifications, 0o700))
}

// TestShutDown checks that machines in every state end with their host, each as cleanly
// as it can. The next driver finds the reason, and starts them again.
func TestShutDown(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec   func(*engine, *driver.ServerSpec)
		before func(*testing.T, *Driver, driver.ServerSpec)
		limit  time.Duration // an hour if it is zero
		forced bool
		isOff  bool // before
		reason string
	}{
		"running": {reason: driver.ExitHostShutdown},
		"stubborn": {
			spec:   func(e *engine, s *driver.ServerSpec) { s.Image.Source, s.GracePeriod = e.stubborn, time.Second },
			forced: true, reason: driver.ExitHostShutdown,
		},
		"stubborn beyond the limit": { // no grace period keeps a host up for longer
			spec:  func(e *engine, s *driver.ServerSpec) { s.Image.Source, s.GracePeriod = e.stubborn, 24*time.Hour },
			limit: time.Second, forced: true, reason: driver.ExitHostShutdown,
		},
		"paused": {
			before: func(t *testing.T, d *Driver, spec driver.ServerSpec) {
				t.Helper()
				pause(t, d, spec)
			},
			reason: driver.ExitHostShutdown,
		},
		"silent": {
			spec: func(_ *engine, s *driver.ServerSpec) { s.GracePeriod = time.Second },
			before: func(t *testing.T, d *Driver, spec driver.ServerSpec) {
				t.Helper()
				assert.NoError(t, syscall.Kill(d.Host.InstanceOf(spec.UID).Machine.PID(), syscall.SIGSTOP))
			},
			forced: true, reason: driver.ExitHostShutdown,
		},
		"supervisor halted": {
			before: func(t *testing.T, d *Driver, spec driver.ServerSpec) {
				t.Helper()
				signalSupervisor(t, d.Host.InstanceOf(spec.UID), syscall.SIGSTOP)
			},
			limit: 5 * time.Minute, reason: driver.ExitHostShutdown,
		},
		"ended by itself": {
			before: func(t *testing.T, d *Driver, spec driver.ServerSpec) {
				t.Helper()
				h := d.Host.InstanceOf(spec.UID)
				assert.NoError(t, h.Machine.Execute(t.Context(), "system_powerdown", nil, nil))
				waitStopped(t, h)
			},
			reason: "Completed", isOff: true,
		},
		"being changed": {
			before: func(t *testing.T, d *Driver, spec driver.ServerSpec) {
				t.Helper()
				lock, err := d.Host.StateDir.Lock(spec.UID)
				assert.NoError(t, err)
				t.Cleanup(lock.Release)
			},
			reason: driver.ExitHostShutdown,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			spec := e.spec()
			spec.GracePeriod = time.Hour
			if c.spec != nil {
				c.spec(e, &spec)
			}
			first := boots(t, d, spec, "drover guest 1 ")
			if c.before != nil {
				c.before(t, d, spec)
			}
			ended := e.shutDown(t, cmp.Or(c.limit, time.Hour))
			wantEnded(t, ended, c.isOff, ShutdownResult{Namespace: spec.Namespace, Name: spec.Name, Forced: c.forced})
			if on, err := d.Host.InstanceOf(spec.UID).Machine.IsRunning(); on || err != nil {
				t.Errorf("its QEMU runs: %v, %v", on, err)
			}
			again := e.shutDown(t, time.Hour)
			assert.True(t, len(again) == 0, "ended twice: %+v", again)
			next := e.open(t)
			listed, err := next.List(t.Context(), spec.UID)
			assert.NoError(t, err)
			if s := listed[0]; s.State != driver.StateStopped || s.Run != first.Run || s.Exit == nil || s.Exit.Reason != c.reason {
				t.Errorf("the next driver finds %+v, %+v", s, s.Exit)
			}
		})
	}
}

// wantEnded checks which machine ShutDown has ended: none that was off.
func wantEnded(t *testing.T, ended []*ShutdownResult, isOff bool, want ShutdownResult) {
	t.Helper()
	if isOff && len(ended) == 0 || !isOff && len(ended) == 1 && *ended[0] == want {
		return
	}
	t.Errorf("ended: %+v, want %+v unless it is off: %v", ended, want, isOff)
}

func (e *engine) shutDown(t *testing.T, limit time.Duration) []*ShutdownResult {
	t.Helper()
	ended, err := ShutDown(t.Context(), Options{Dir: e.dir, MachineProgram: machineProgram}, limit)
	assert.NoError(t, err)
	for _, m := range ended {
		t.Logf("ended: %+v", *m)
	}
	return ended
}

// TestShutDownOfOthers checks that a released machine, and one whose record cannot be
// read, lose nothing either.
func TestShutDownOfOthers(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	released, broken := e.spec(), e.spec()
	released.GracePeriod = time.Hour
	boots(t, d, released, "drover guest 1 A")
	assert.NoError(t, d.Delete(t.Context(), released.Target, true))
	boots(t, d, broken, "drover guest 1 A")
	assert.NoError(t, os.WriteFile(d.Host.InstanceOf(broken.UID).Machine.File(instance.RecordFile), []byte("{"), 0o600))
	ended := e.shutDown(t, time.Hour)
	for _, m := range ended {
		assert.True(t, m.Err == nil && !m.Forced, "ended: %+v", m)
	}
	assert.True(t, len(ended) == 2, "ended %d machines", len(ended))
	ends, err := filepath.Glob(d.Host.StateDir.Path(exits.Dir, "*.json"))
	assert.True(t, err == nil && len(ends) == 0, "what no server has: %v, %v", ends, err)
}

// TestShutDownCutOff checks that the next driver completes a shutdown that was killed
// after it had begun, and reports it as the reason of the machine's end.
func TestShutDownCutOff(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Image.Source, spec.GracePeriod = e.stubborn, time.Second
	first := boots(t, d, spec, "drover guest 1 S")
	s, err := d.Host.InstanceOf(spec.UID).Observe(t.Context())
	assert.NoError(t, err)
	recordShutdown(s, gracePeriod(s))

	next := e.open(t)
	end := reach(t, next, spec, driver.StateStopped)
	assert.True(t, end.Run == first.Run && end.Exit != nil && end.Exit.Reason == driver.ExitHostShutdown, "it ended with %+v", end.Exit)
	again := reach(t, next, spec, driver.StateRunning)
	assert.True(t, again.Run != first.Run, "it is %+v", again)
}

// TestGracePeriodIsKept checks that a change of the grace period needs no restart.
func TestGracePeriodIsKept(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	for _, grace := range []time.Duration{time.Minute, 0, time.Hour} {
		spec.GracePeriod = grace
		s := reach(t, d, spec, driver.StateRunning)
		assert.True(t, len(s.Pending) == 0, "it waits for a restart: %s", strings.Join(s.Pending, ", "))
		r, err := d.Host.InstanceOf(spec.UID).Load()
		assert.NoError(t, err)
		assert.Equal(t, "kept", gracePeriod(r), grace)
	}
}
