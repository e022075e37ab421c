// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/exits"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/internal/machine/failure"
	"cloudnative.tw/drover/internal/machine/proc"
	"cloudnative.tw/drover/internal/machine/supervised"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// supervisorLock is the lock of the supervisor of QEMU.
const supervisorLock = "supervisor.lock"

// waitStopped waits until a machine's QEMU has ended.
func waitStopped(t *testing.T, h *instance.Instance) {
	t.Helper()
	assert.Eventually(t, "QEMU is gone", func(testing.TB) error {
		if on, err := h.Machine.IsRunning(); on {
			return errors.Join(errors.New("it runs"), err)
		}
		return nil
	})
}

// TestSupervisorOfNextRun checks that a supervisor is started for a QEMU that is there: what is recorded before it is
// there may be of the run before, and so would be the record of its end.
func TestSupervisorOfNextRun(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Power = driver.PowerOff
	reach(t, d, spec, driver.StateStopped)
	place := d.Host.InstanceOf(spec.UID).Supervisor()
	place.Reload = func() (supervised.Machine, error) {
		t.Error("it was asked for the run of no QEMU")
		return place, errors.New("no run")
	}
	assert.ErrorIs(t, "Reach", assert.ErrorOf(place.Reach(t.Context())), supervised.ErrNoQEMU)
}

// TestRetained checks that a released machine is supervised as before, by the present and
// by later supervisors. When it has ended, only its directory is left.
func TestRetained(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ watched, killed bool }{"before": {true, false}, "later": {false, false}, "killed": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			d.Host.LogBound = smallLogs
			spec := e.spec()
			if c.watched {
				keepWatching(t, d)
			}
			s := boots(t, d, spec, "drover guest 1 A")
			group := e.giveGroup(t, d.Host.InstanceOf(spec.UID))
			assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
			isGone(t, d.Host.StateDir.Path("locks", string(spec.UID)))
			if !c.watched {
				keepWatching(t, d)
			}
			s.Retained = true
			h := e.instanceFor(t, s)
			conn := fillsLog(t, h)
			if c.killed {
				assert.NoError(t, h.Machine.Kill(t.Context()))
				assert.NoError(t, os.RemoveAll(h.Machine.Path))
			} else {
				assert.NoError(t, assert.ErrorOf(conn.Write([]byte("x"))))
			}
			waitStopped(t, h)
			assert.Eventually(t, "its group is gone", func(testing.TB) error {
				if _, err := os.Stat(group); !errors.Is(err, fs.ErrNotExist) {
					return errors.Join(errors.New("it is there"), err)
				}
				return nil
			})
			listed, err := d.List(t.Context())
			assert.NoError(t, err)
			shown := len(listed) == 1
			assert.True(t, shown != c.killed && (!shown || (listed[0].State == driver.StateStopped && listed[0].Retained)), "listed: %+v", listed)
			for _, sub := range []string{exits.Dir, instance.NotificationsDir} {
				if left, err := os.ReadDir(d.Host.StateDir.Path(sub)); err != nil || len(left) != 0 {
					t.Errorf("in %s is %v, %v", sub, left, err)
				}
			}
		})
	}
}

// giveGroup sets a control group in the record of a machine. A plain folder replaces the
// group.
func (e *engine) giveGroup(t *testing.T, h *instance.Instance) (group string) {
	t.Helper()
	group = cgroup.Folder{Path: e.images}.GroupPath(string(h.UID))
	assert.NoError(t, os.Mkdir(group, 0o700))
	r, err := h.Load()
	assert.NoError(t, err)
	r.CPUGroup = group
	assert.NoError(t, r.Save())
	return group
}

// TestReleasedWhenOff checks that no end is kept of a machine that had ended before it
// was released.
func TestReleasedWhenOff(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	assert.NoError(t, d.Host.InstanceOf(spec.UID).Machine.Kill(t.Context()))
	waitExit(t, d, spec.UID)
	assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
	listed, err := d.List(t.Context())
	assert.NoError(t, err)
	assert.True(t, len(listed) == 1 && listed[0].Retained && listed[0].State == driver.StateStopped, "listed: %+v", listed)
	for _, sub := range []string{exits.Dir, "locks"} {
		if left, err := filepath.Glob(d.Host.StateDir.Path(sub, string(spec.UID)+"*")); err != nil || len(left) != 0 {
			t.Errorf("in %s is %v, %v", sub, left, err)
		}
	}
}

// TestReleasedAgain checks that a repeated release leaves the supervisor of the machine alone, which no controller would
// replace. Without root its working directory is hidden.
func TestReleasedAgain(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	s := boots(t, d, spec, "drover guest 1 A")
	assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
	assert.ErrorIs(t, "another release", d.Delete(t.Context(), spec.Target, true), driver.ErrNotFound, "")
	s.Retained = true
	h := e.instanceFor(t, s)
	follows, err := h.Supervisor().IsSupervised()
	assert.True(t, err == nil && follows, "after the second release it is supervised: %t, %v", follows, err)
	assert.NoError(t, h.Machine.Kill(t.Context()))
	assert.NoError(t, h.Supervisor().End(t.Context()))
}

// TestStandbyForgets checks that a standby forgets a machine when a complete list does
// not find it.
func TestStandbyForgets(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	leader, d := e.open(t), e.open(t)
	stays, goes := e.spec(), e.spec()
	for _, spec := range []driver.ServerSpec{stays, goes} {
		off(t, leader, spec)
		d.Host.Exits.Unwritten.Store(exits.Name{UID: spec.UID}, driver.Exit{})
	}
	remembered := func() map[string]int {
		return map[string]int{
			"reported exits": d.Host.ReportedExits.Len(), "unwritten exits": d.Host.Exits.Unwritten.Len(),
		}
	}
	for want := range 2 {
		want = 2 - want
		assert.NoError(t, assert.ErrorOf(d.List(t.Context())))
		assert.NoError(t, assert.ErrorOf(d.List(t.Context(), stays.UID))) // not a complete list
		for name, n := range remembered() {
			assert.True(t, n == want, "%d are %s, want %d", n, name, want)
		}
		gone(t, leader, goes)
	}
}

// fillsLog has a guest print until its log is cut, and returns its console.
func fillsLog(t *testing.T, h *instance.Instance) io.Writer {
	t.Helper()
	c, err := h.Supervisor().Reach(t.Context())
	assert.NoError(t, err)
	console, err := c.Console(t.Context(), true)
	assert.NoError(t, err)
	t.Cleanup(func() { _ = console.Close() })
	go func() { _, _ = io.Copy(io.Discard, console) }()
	assert.NoError(t, assert.ErrorOf(console.Write([]byte("b"+strings.Repeat("u", 2*smallLogs))))) // it echoes its input
	assert.Eventually(t, "its log is cut", func(testing.TB) error {
		old, err := os.ReadFile(h.Machine.File(machine.SerialLogFile + machine.OldLog))
		if n := bytes.Count(old, []byte("u")); err == nil && n == 0 {
			err = fmt.Errorf("put aside were %d bytes", len(old))
		}
		return err
	})
	return console
}

// supervisorState is the state of the supervisor in a machine's directory.
type supervisorState struct {
	PID     int
	Program string
}

func supervisorOf(t testing.TB, h *instance.Instance) (s supervisorState) {
	t.Helper()
	assert.NoError(t, json.Unmarshal([]byte(framework.ReadFile(t, h.Machine.File("supervisor.json"))), &s))
	return s
}

// signalSupervisor sends a signal to the supervisor of a machine.
func signalSupervisor(t *testing.T, h *instance.Instance, s syscall.Signal) {
	t.Helper()
	assert.NoError(t, syscall.Kill(supervisorOf(t, h).PID, s))
}

// TestSupervisorsReplaced checks that a supervisor which is halted or killed is replaced while its guest runs on. The
// new one collects the guest when it ends, presses its power button, and cuts its log.
func TestSupervisorsReplaced(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"halted": syscall.SIGSTOP, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			d.Host.LogBound = smallLogs
			ends, stops, prints := e.spec(), e.spec(), e.spec()
			runs := map[types.UID]string{}
			for _, spec := range []driver.ServerSpec{ends, stops, prints} {
				runs[spec.UID] = boots(t, d, spec, "drover guest 1 A").Run
				signalSupervisor(t, d.Host.InstanceOf(spec.UID), signal)
			}
			keepWatching(t, d)
			for uid, run := range runs {
				s := listAnswering(t, d, uid)[0]
				assert.True(t, s.Run == run && s.State == driver.StateRunning, "it is %+v, and was in run %s", s, run)
			}
			e.sendText(t, driver.Server{UID: ends.UID}, "x")
			stops.Power = driver.PowerOff
			ensure(t, d, stops)
			for _, spec := range []driver.ServerSpec{ends, stops} {
				waitStopped(t, d.Host.InstanceOf(spec.UID))
				end := waitExit(t, d, spec.UID)
				assert.True(t, end.Code == 0, "it ended with %+v", end)
				gone(t, d, spec)
			}
			fillsLog(t, d.Host.InstanceOf(prints.UID))
		})
	}
}

// otherVersion returns the options of a Drover with another drover-machine.
func (e *engine) otherVersion(t *testing.T) Options {
	t.Helper()
	o := e.options()
	o.MachineProgram = filepath.Join(t.TempDir(), "drover-machine")
	assert.NoError(t, os.WriteFile(o.MachineProgram, []byte(framework.ReadFile(t, machineProgram)+"another version"), 0o600))
	return o
}

// waitUpgraded calls pass repeatedly until a supervisor of another version has replaced the present one.
func waitUpgraded(t *testing.T, inst *instance.Instance, before supervisorState, pass func()) {
	t.Helper()
	assert.Eventually(t, "the supervisor is replaced", func(t testing.TB) error {
		pass()
		now := supervisorOf(t, inst)
		return assert.ErrorUnless(now.PID != before.PID && now.Program != before.Program && now.PID != 0, "it is %+v, and was %+v", now, before)
	})
}

// TestNewerSupervisor checks that a driver with another drover-machine replaces the supervisors of the previous driver,
// and that the previous driver does not replace them in turn.
func TestNewerSupervisor(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	keepWatching(t, d)
	spec := e.spec()
	run := boots(t, d, spec, "drover guest 1 A").Run
	before := supervisorOf(t, d.Host.InstanceOf(spec.UID))
	keepWatching(t, openWith(t, e.otherVersion(t)))
	waitUpgraded(t, d.Host.InstanceOf(spec.UID), before, func() {})
	after := supervisorOf(t, d.Host.InstanceOf(spec.UID))
	keepWatching(t, d) // a second watch, for the machines that exist now
	s := listAnswering(t, d, spec.UID)[0]
	assert.True(t, s.Run == run && s.State == driver.StateRunning, "it is %+v, and was in run %s", s, run)
	e.printWord(t, driver.Server{UID: spec.UID}, "zy")
	now := supervisorOf(t, d.Host.InstanceOf(spec.UID))
	assert.True(t, now == after, "the supervisor is %+v, and was %+v", now, after)
}

// TestEpochOfRestoredEtcd checks that a supervisor refuses a leader with a lower epoch than the leader that changed its
// machine, and is replaced if the driver's folder has admitted the refused leader.
func TestEpochOfRestoredEtcd(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	spec.Epoch = 9
	run := boots(t, d, spec, "drover guest 1 A").Run
	inst, err := d.Host.InstanceOf(spec.UID).Load()
	assert.NoError(t, err)
	inst.Leader = 5
	before := supervisorOf(t, inst)
	assert.ErrorIs(t, "a call of a leader before", inst.SupervisorCalls().Pause(t.Context()), failure.ErrFenced)

	assert.NoError(t, os.RemoveAll(filepath.Join(e.dir, "epochs")))
	spec.Epoch = 5
	s := pause(t, d, spec)
	assert.True(t, s.Run == run, "it is %+v, and was in run %s", s, run)
	assert.True(t, supervisorOf(t, inst) != before, "the supervisor that knows a later leader is still there")
}

// TestSilence checks that the list says of a QEMU that it does not answer, and that the QEMU is reported again
// when it answers.
func TestSilence(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := d.Watch(ctx)
	assert.NoError(t, err)
	handle, err := os.FindProcess(d.Host.InstanceOf(spec.UID).Machine.PID())
	assert.NoError(t, err)
	assert.NoError(t, handle.Signal(syscall.SIGSTOP))
	listed, err := d.List(t.Context())
	assert.NoError(t, err)
	if len(listed) != 1 || listed[0].State != driver.StateRunning || listed[0].Err == nil || !strings.Contains(listed[0].Err.Error(), "QEMU does not answer") {
		t.Errorf("listed: %+v", listed)
	}
	assert.NoError(t, handle.Signal(syscall.SIGCONT))
	assert.Equal(t, "notified of", <-changes, spec.UID)
	assert.Eventually(t, "it answers", func(t testing.TB) error {
		if listed, err = d.List(t.Context()); err != nil || len(listed) != 1 || listed[0].Err != nil {
			return fmt.Errorf("listed: %+v, %w", listed, err)
		}
		return nil
	})
	cancel()
	for range changes {
	}
}

// TestWatchEndsQuietly checks that a watcher that stops sends no notification for unchanged
// machines.
func TestWatchEndsQuietly(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := d.Watch(ctx)
	assert.NoError(t, err)
	if uid := <-changes; uid != spec.UID { // that it answers, by its new supervisor
		t.Errorf("notified of %q", uid)
	}
	file := d.Host.StateDir.Path(instance.NotificationsDir, string(spec.UID))
	before, err := os.Stat(file)
	assert.NoError(t, err)
	cancel()
	for range changes {
	}
	after, err := os.Stat(file)
	assert.NoError(t, err)
	assert.True(t, os.SameFile(before, after) && before.ModTime().Equal(after.ModTime()), "it sends a notification")
}

// TestKilledAfterResume checks that other processes supervise a machine whose leader is
// killed right after it resumed the guest.
func TestKilledAfterResume(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	keepWatching(t, d)
	h := d.Host.InstanceOf(spec.UID)
	s, err := h.Observe(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, s.StartRun(t.Context(), spec)) // and none of the steps after StartRun
	e.sendText(t, driver.Server{UID: spec.UID}, "x")
	waitStopped(t, h)
}

// TestSupervisorThatEnds checks that a supervisor which ends again and again is restarted at once the first time, and
// then after a wait, whoever asks for it.
func TestSupervisorThatEnds(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	o, now := e.options(), framework.NewFakeClock(time.Now())
	o.Clock = now
	d := openWith(t, o)
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	h := d.Host.InstanceOf(spec.UID)
	end := func() {
		assert.NoError(t, proc.Kill(t.Context(), supervisorOf(t, h).PID, func(int) bool { return true }))
	}
	isFollowed := func(t testing.TB) error { return listOf(t, d)[spec.UID].Err }
	end()
	assert.Eventually(t, "it is restarted at once", isFollowed)
	second := supervisorOf(t, h)
	end()
	for range 3 {
		assert.ErrorIs(t, "a call before the wait is over", listOf(t, d)[spec.UID].Err, proc.ErrEndsSoon, "and is started again within 5s")
	}
	last := supervisorOf(t, h)
	assert.True(t, last == second, "started was %+v after %+v", last, second)
	now.Step(100 * time.Millisecond)
	assert.Eventually(t, "it is restarted after the wait", isFollowed)
}

// TestNotifiesOnce checks that a machine which cannot be listened to is reported when that
// changes, and not again and again because of the notification itself.
func TestNotifiesOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, files := range map[string][]string{
		"all its files": {supervisorLock, machine.RunLockFile, instance.RecordFile},
	} {
		t.Run(name, func(t *testing.T) {
			o := e.options()
			now := framework.NewFakeClock(time.Now())
			o.Clock = now
			d := openWith(t, o)
			spec, other := e.spec(), e.spec()
			off(t, d, spec)
			off(t, d, other)
			h := d.Host.InstanceOf(spec.UID)
			record := h.Machine.File(instance.RecordFile)
			assert.NoError(t, os.Rename(record, record+".away"))
			assert.NoError(t, os.Link(record+".away", record))
			for _, file := range files {
				_ = os.Remove(h.Machine.File(file))
				assert.NoError(t, aLoop(h.Machine.File(file)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			changes, err := d.Watch(ctx)
			assert.NoError(t, err)
			assert.Equal(t, "notified of", <-changes, spec.UID)
			for range 100 { // long enough to see a notification that repeats itself
				d.Host.Notify(other.UID)
				for uid := <-changes; uid != other.UID; uid = <-changes {
					t.Fatalf("notified of %q again", uid)
				}
			}
			_ = os.Remove(record)
			assert.NoError(t, os.WriteFile(record, nil, 0o600))
			assert.Eventually(t, "what has changed is reported", func(testing.TB) error {
				now.Step(instance.SuperviseEvery)
				select {
				case <-changes:
					return nil
				default:
					return errors.New("nothing is")
				}
			})
			assert.NoError(t, os.Rename(record+".away", record))
			assert.NoError(t, errors.Join(os.Remove(h.Machine.File(supervisorLock)), os.RemoveAll(h.Machine.File(machine.RunLockFile))))
			cancel()
			for range changes {
			}
		})
	}
}
