// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// waitStopped waits until a machine's QEMU has ended.
func waitStopped(t *testing.T, h *instance.Instance) {
	t.Helper()
	assert.Eventually(t, "QEMU is gone", func(testing.TB) error {
		if on, err := h.IsRunning(); on {
			return errors.Join(errors.New("it runs"), err)
		}
		return nil
	})
}

// TestRetained checks that a released machine is supervised as before, by the present and
// by later supervisors. When it has ended, only its directory is left.
func TestRetained(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ watched, killed bool }{"before": {true, false}, "later": {false, false}, "killed": {true, true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, d := newDriver(t)
			d.LogBound = smallLogs
			spec := e.spec()
			if c.watched {
				keepWatching(t, d)
			}
			s := boots(t, d, spec, "drover guest 1 A")
			group := e.giveGroup(t, d.InstanceOf(spec.UID))
			assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
			isGone(t, d.StateDir.Path("locks", string(spec.UID)))
			if !c.watched {
				keepWatching(t, d)
			}
			s.Retained = true
			h := e.instanceFor(t, s)
			conn := fillsLog(t, h)
			if c.killed {
				assert.NoError(t, h.Kill(t.Context()))
				assert.NoError(t, os.RemoveAll(h.Path))
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
			if shown := len(listed) == 1; shown == c.killed || shown && (listed[0].State != driver.StateStopped || !listed[0].Retained) {
				t.Errorf("listed: %+v", listed)
			}
			for _, sub := range []string{instance.EndsDir, instance.NotificationsDir} {
				if left, err := os.ReadDir(d.StateDir.Path(sub)); err != nil || len(left) != 0 {
					t.Errorf("in %s is %v, %v", sub, left, err)
				}
			}
		})
	}
}

// giveGroup sets a control group in the record of a machine. A plain folder stands in for
// it.
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
	assert.NoError(t, d.InstanceOf(spec.UID).Kill(t.Context()))
	waitExit(t, d, spec.UID)
	assert.NoError(t, d.Delete(t.Context(), spec.Target, true))
	listed, err := d.List(t.Context())
	assert.NoError(t, err)
	if len(listed) != 1 || !listed[0].Retained || listed[0].State != driver.StateStopped {
		t.Errorf("listed: %+v", listed)
	}
	for _, sub := range []string{instance.EndsDir, "locks"} {
		if left, err := filepath.Glob(d.StateDir.Path(sub, string(spec.UID)+"*")); err != nil || len(left) != 0 {
			t.Errorf("in %s is %v, %v", sub, left, err)
		}
	}
}

// TestStandbyForgets checks that a standby forgets a machine when a complete list does
// not find it.
func TestStandbyForgets(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	leader, d := e.open(t), e.open(t)
	stays, goes := e.spec(), e.spec()
	now := time.Now()
	for _, spec := range []driver.ServerSpec{stays, goes} {
		off(t, leader, spec)
		d.PowerPresses.Store(spec.UID, instance.PowerPress{Run: "run", At: now})
		d.UnansweredQueries.Store(d.InstanceOf(spec.UID).Path, true)
		d.UnwrittenExits.Store(d.InstanceOf(spec.UID).ExitFile(), driver.Exit{})
	}
	remembered := func() map[string]int {
		return map[string]int{
			"presses": d.PowerPresses.Len(), "reported exits": d.ReportedExits.Len(),
			"unanswered queries": d.UnansweredQueries.Len(), "unwritten exits": d.UnwrittenExits.Len(),
		}
	}
	for want := range 2 {
		want = 2 - want
		assert.NoError(t, assert.ErrorOf(d.List(t.Context())))
		assert.NoError(t, assert.ErrorOf(d.List(t.Context(), stays.UID))) // not a complete list
		for name, n := range remembered() {
			if n != want {
				t.Errorf("%d are %s, want %d", n, name, want)
			}
		}
		gone(t, leader, goes)
	}
}

// fillsLog has a guest print until its log is cut, and returns its serial port.
func fillsLog(t *testing.T, h *instance.Instance) net.Conn {
	t.Helper()
	conn, err := h.DialSerial(t.Context())
	assert.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	go func() { _, _ = io.Copy(io.Discard, conn) }()                                                      // else QEMU would block the guest
	assert.NoError(t, assert.ErrorOf(conn.Write([]byte("b"+strings.Repeat("u", 2*int(smallLogs.Size)))))) // it echoes its input
	assert.Eventually(t, "its log is cut", func(testing.TB) error {
		old, err := os.ReadFile(h.File(machine.SerialLogFile + machine.OldLog))
		if n := bytes.Count(old, []byte("u")); err == nil && n == 0 {
			err = fmt.Errorf("put aside were %d bytes", len(old))
		}
		return err
	})
	return conn
}

// TestEventsHeld checks the other supervisors while the one that has the events of a
// machine is halted. They collect its guest when it ends, press its power button again,
// and cut its log.
func TestEventsHeld(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	d.LogBound = smallLogs
	ends, stops, prints := e.spec(), e.spec(), e.spec()
	for _, spec := range []driver.ServerSpec{ends, stops, prints} {
		pause(t, d, spec)
		halted, err := d.InstanceOf(spec.UID).Dial(t.Context(), machine.EventsSocket, nil)
		assert.NoError(t, err)
		defer halted.Close()
	}
	keepWatching(t, d)
	e.sendText(t, reach(t, d, ends, driver.StateRunning), "x")
	stops.Power = driver.PowerOff
	ensure(t, d, stops) // too early: its guest has yet to boot
	for _, spec := range []driver.ServerSpec{ends, stops} {
		waitStopped(t, d.InstanceOf(spec.UID))
		if end := waitExit(t, d, spec.UID); end.Code != 0 {
			t.Errorf("it ended with %+v", end)
		}
		gone(t, d, spec)
	}
	boots(t, d, prints, "drover guest 1 A")
	fillsLog(t, d.InstanceOf(prints.UID))
}

// TestSilence checks that a QEMU that does not answer does not delay the list for long,
// and that it is reported then and again when it answers.
func TestSilence(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	d.LogBound.Every = 10 * time.Millisecond
	spec := e.spec()
	reach(t, d, spec, driver.StateRunning)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := d.Watch(ctx)
	assert.NoError(t, err)
	handle, err := os.FindProcess(d.InstanceOf(spec.UID).PID())
	assert.NoError(t, err)
	assert.NoError(t, handle.Signal(syscall.SIGSTOP))
	observed := make(chan struct{})
	go func() {
		defer close(observed)
		_, _ = d.InstanceOf(spec.UID).Observe(ctx)
	}()
	listed, err := d.List(t.Context())
	assert.NoError(t, err)
	select {
	case <-observed:
		t.Error("the list took as long as a call about this machine alone")
	default:
	}
	if len(listed) != 1 || listed[0].State != driver.StateRunning || listed[0].Err == nil || !strings.Contains(listed[0].Err.Error(), "QEMU does not answer") {
		t.Errorf("listed: %+v", listed)
	}
	assert.NoError(t, handle.Signal(syscall.SIGCONT))
	<-observed
	if uid := <-changes; uid != spec.UID {
		t.Errorf("notified of %q", uid)
	}
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
	d.UnansweredQueries.Store(d.InstanceOf(spec.UID).Path, true)
	changes, err := d.Watch(ctx)
	assert.NoError(t, err)
	if uid := <-changes; uid != spec.UID { // that it answers, by its new supervisor
		t.Errorf("notified of %q", uid)
	}
	file := d.StateDir.Path(instance.NotificationsDir, string(spec.UID))
	before, err := os.Stat(file)
	assert.NoError(t, err)
	cancel()
	for range changes {
	}
	after, err := os.Stat(file)
	assert.NoError(t, err)
	if !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
		t.Error("it sends a notification")
	}
}

// TestKilledAfterResume checks that other processes supervise a machine whose leader is
// killed right after it resumed the guest.
func TestKilledAfterResume(t *testing.T) {
	t.Parallel()
	e, d := newDriver(t)
	spec := e.spec()
	off(t, d, spec)
	keepWatching(t, d)
	h := d.InstanceOf(spec.UID)
	s, err := h.Observe(t.Context())
	assert.NoError(t, err)
	assert.NoError(t, s.StartRun(t.Context(), spec)) // and no step after that
	e.sendText(t, driver.Server{UID: spec.UID}, "x")
	waitStopped(t, h)
}

// TestNotifiesOnce checks that a machine which cannot be listened to is reported when that
// changes, and not again and again by its own notification.
func TestNotifiesOnce(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	for name, files := range map[string][]string{
		"its events":    {machine.EventsSocket},
		"all its files": {machine.EventsSocket, machine.RunLockFile, instance.RecordFile},
	} {
		t.Run(name, func(t *testing.T) {
			o := e.options()
			now := framework.NewFakeClock(time.Now())
			o.Clock = now
			d := openWith(t, o)
			spec, other := e.spec(), e.spec()
			off(t, d, spec)
			off(t, d, other)
			h := d.InstanceOf(spec.UID)
			record := h.File(instance.RecordFile)
			assert.NoError(t, os.Rename(record, record+".away"))
			assert.NoError(t, os.Link(record+".away", record))
			for _, file := range files {
				_ = os.Remove(h.File(file))
				assert.NoError(t, aLoop(h.File(file)))
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			changes, err := d.Watch(ctx)
			assert.NoError(t, err)
			if uid := <-changes; uid != spec.UID {
				t.Errorf("notified of %q", uid)
			}
			for range 100 { // long enough to see a notification that repeats itself
				d.Notify(other.UID)
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
			assert.NoError(t, errors.Join(os.Remove(h.File(machine.EventsSocket)), os.RemoveAll(h.File(machine.RunLockFile))))
			cancel()
			for range changes {
			}
		})
	}
}
