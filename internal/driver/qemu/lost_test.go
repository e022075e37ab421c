// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestSupervisorKilledAfterRecord checks that a supervisor that is killed between the record of an end and the end of
// QEMU is followed by one that keeps the record, and makes QEMU quit.
func TestSupervisorKilledAfterRecord(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	h := d.Host.InstanceOf(spec.UID)
	signalSupervisor(t, h, syscall.SIGSTOP)
	assert.NoError(t, h.Machine.Execute(t.Context(), "system_powerdown", nil, nil))
	assert.Eventually(t, "the guest has shut down", func(t testing.TB) error {
		status, err := h.Machine.Status(t.Context())
		if err == nil && status != machine.StatusShutdown {
			err = errors.New("it is " + status)
		}
		return err
	})
	recordEnd(t, d, h)
	signalSupervisor(t, h, syscall.SIGKILL)
	keepWatching(t, d)
	waitStopped(t, h)
	end := waitExit(t, d, spec.UID)
	assert.True(t, end.Reason == machine.EndPanicked, "it ended with %+v", end)
}

// recordEnd records an end as a supervisor does, of another kind than the next one would record.
func recordEnd(t *testing.T, d *Driver, h *instance.Instance) {
	t.Helper()
	records, err := filepath.Glob(d.Host.StateDir.Path(exits.Dir, string(h.UID)+".*.end"))
	assert.Require(t, err == nil && len(records) == 1, "the records are %v, %v", records, err)
	f, err := os.OpenFile(records[0], os.O_WRONLY, 0)
	assert.NoError(t, err)
	text := fmt.Sprintf(`{"reason":%q,"at":%q}`, machine.EndPanicked, time.Now().UTC().Format(time.RFC3339Nano))
	assert.NoError(t, assert.ErrorOf(f.WriteAt(fmt.Appendf(nil, "%x %s\n", sha256.Sum256([]byte(text)), text), 0)))
	assert.NoError(t, f.Close())
}

// TestStopOfNextSupervisor checks that a guest is ended when its time to shut down is over though its supervisor was
// killed meanwhile, even if its QEMU never answers the next one, and no controller runs.
func TestStopOfNextSupervisor(t *testing.T) {
	t.Parallel()
	for name, isSilent := range map[string]bool{"QEMU answers": false, "QEMU is silent": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			spec := e.spec()
			spec.Image.Source = e.stubborn
			boots(t, d, spec, "drover guest 1 S")
			spec.Power, spec.StopBy = driver.PowerOff, time.Now().Add(3*time.Second)
			ensure(t, d, spec)
			h := d.Host.InstanceOf(spec.UID)
			if isSilent {
				assert.NoError(t, syscall.Kill(h.Machine.PID(), syscall.SIGSTOP))
			}
			replaceSupervisor(t, h)
			waitStopped(t, h)
			if end := waitExit(t, d, spec.UID); end.Reason != machine.EndForced || end.At.Before(spec.StopBy.Truncate(time.Second)) {
				t.Errorf("it ended with %+v, and had until %s", end, spec.StopBy)
			}
		})
	}
}

// replaceSupervisor kills a supervisor, and has a call start another.
func replaceSupervisor(t *testing.T, h *instance.Instance) {
	t.Helper()
	before := supervisorOf(t, h)
	signalSupervisor(t, h, syscall.SIGKILL)
	assert.Eventually(t, "there is another supervisor", func(testing.TB) error {
		inst, err := h.Load()
		if err == nil {
			_, err = inst.Supervisor().Reach(t.Context())
		}
		if err == nil && supervisorOf(t, h).PID == before.PID {
			err = errors.New("it is ending")
		}
		return err
	})
}

// TestConsoleOfKilledSupervisor checks that whoever reads or types at a console learns that its supervisor has ended,
// and attaches to the next one.
func TestConsoleOfKilledSupervisor(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	boots(t, d, spec, "drover guest 1 A")
	console, err := d.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(console.Write([]byte("z"))))
	reads := streams.ReadAll(t, console)
	reads.WaitForText(t, "z")
	signalSupervisor(t, d.Host.InstanceOf(spec.UID), syscall.SIGKILL)
	assert.Eventually(t, "the console ends", func(testing.TB) error {
		_, err := reads.Now()
		switch {
		case err == nil:
			return errors.New("it goes on")
		case !strings.Contains(err.Error(), "the machine cannot be reached"):
			t.Fatalf("it ended with %v", err)
		}
		return nil
	})
	_, err = console.Write([]byte("z"))
	assert.True(t, err != nil, "it takes what is typed")
	next, err := d.Console(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.NoError(t, assert.ErrorOf(next.Write([]byte("y"))))
	streams.ReadAll(t, next).WaitForText(t, "y")
}

// TestSupervisorKilledAtFault checks that a guest that waits for its disk is resumed by the next supervisor, which finds
// out why it waits.
func TestSupervisorKilledAtFault(t *testing.T) {
	t.Parallel()
	const quota, failures = 122, 6
	e := newEngine(t)
	d := e.openBinary(t, framework.FailingDiskScript(t, quota, failures))
	spec := e.spec()
	s := waitsForDisk(t, d, spec)
	replaceSupervisor(t, d.Host.InstanceOf(spec.UID))
	assert.Eventually(t, "the next one says what the guest waits for", func(t testing.TB) error {
		if err := refusesToResume(t, d, spec); !errors.Is(err, driver.ErrExhausted) {
			return err
		}
		return nil
	})
	after := goesOn(t, d, spec)
	assert.True(t, after.Run == s.Run && after.Err == nil, "it is %+v, and was %+v", after, s)
}
