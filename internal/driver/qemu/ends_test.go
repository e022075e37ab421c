// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// waitGuestEnded waits until the guest has ended, without an end being reported.
func waitGuestEnded(t *testing.T, h *instance.Instance) {
	t.Helper()
	assert.Eventually(t, "the guest ends", func(t testing.TB) error {
		if status, err := h.Status(t.Context()); err != nil || status != machine.StatusShutdown {
			return fmt.Errorf("it is %q, %w", status, err)
		}
		return nil
	})
}

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
			waitGuestEnded(t, h)
		}, "Completed"},
		"killed": {func(t *testing.T, h *instance.Instance, _ driver.Server) {
			t.Helper()
			assert.NoError(t, h.Kill(t.Context()))
		}, "Killed"},
	} {
		t.Run(name, func(t *testing.T) {
			spec := e.spec()
			h := d.InstanceOf(spec.UID)
			first := boots(t, d, spec, "drover guest 1 A")
			c.end(t, h, first)
			s := ensure(t, d, spec)
			if s.State != driver.StateStopped || s.Run != first.Run || s.Exit == nil || s.Exit.Reason != c.reason {
				t.Errorf("it is %+v", s)
			}
			if on, err := h.IsRunning(); on || err != nil {
				t.Errorf("its QEMU runs: %v, %v", on, err)
			}
			second := ensure(t, d, spec)
			if second.State != driver.StateRunning || second.Run == first.Run {
				t.Errorf("started again it is %+v", second)
			}

			waitPrinted(t, d.InstanceOf(spec.UID), "drover guest 2 A")
			c.end(t, h, second)
			restart := spec
			restart.RestartRun = second.Run
			third, err := d.Ensure(t.Context(), restart) // a restart asks for a start, however the run ended
			assert.NoError(t, err)
			if third.State != driver.StateRunning || third.Run == second.Run {
				t.Errorf("restarted it is %+v", third)
			}
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
		if status, err := d.InstanceOf(spec.UID).Status(t.Context()); err == nil && status == "running" {
			ends++
			assert.NoError(t, d.InstanceOf(spec.UID).Kill(t.Context()))
		}
	}, funcr.Options{Verbosity: 1})
	d = openWith(t, o)
	off(t, d, spec)
	notifications := d.StateDir.Path(instance.NotificationsDir)
	assert.NoError(t, os.RemoveAll(notifications))
	assert.NoError(t, os.WriteFile(notifications, nil, 0o600))
	s := ensure(t, d, spec)
	if s.State != driver.StateStopped || s.Exit == nil || s.Exit.Reason != "Killed" || ends != 1 {
		t.Errorf("it was started %d times and is %+v", ends, s)
	}
	assert.NoError(t, os.Remove(notifications))
	assert.NoError(t, os.Mkdir(notifications, 0o700))
}
