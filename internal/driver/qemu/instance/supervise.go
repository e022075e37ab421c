// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
)

// SuperviseEvery is the interval between two checks of a server while another supervisor
// has its events.
const SuperviseEvery = 5 * time.Second

// LogBound is how large a machine's logs get. QEMU writes them and knows no bound, so all
// supervisors of the machine check them periodically: one of them may be halted. Nothing
// checks them while no controller runs; the next controller cuts what has grown.
type LogBound struct {
	Size  int64
	Every time.Duration
}

var defaultLogBound = LogBound{Size: 1 << 20, Every: 5 * time.Second}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Supervise follows a QEMU until it is gone.
func (inst *Instance) Supervise(ctx context.Context, changed chan struct{}) {
	recorded, _ := inst.Load()
	inst.superviseUntilGone(ctx, changed)
	if recorded.Retained && ctx.Err() == nil {
		inst.Host.RemoveGroup(ctx, recorded.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// superviseUntilGone collects the exits of guests, and presses the power button again for
// those that are to stop. If it cannot listen to a QEMU it retries: at once if something
// has changed, and else later, since its own notification would call it back without end.
func (inst *Instance) superviseUntilGone(ctx context.Context, changed chan struct{}) {
	for last := ""; inst.superviseOnce(ctx, changed); {
		now, err := inst.stateFingerprint(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil && now != last {
			last = now
			inst.NotifyWatchers()
			continue
		}
		timer := inst.Host.Clock.NewTimer(SuperviseEvery)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// superviseOnce follows one connection to a QEMU's events, and reports whether there may
// still be a QEMU.
func (inst *Instance) superviseOnce(ctx context.Context, changed chan struct{}) (isLeft bool) {
	c, err := inst.connectEvents(ctx, changed)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	if err == nil {
		defer c.Close()
		if recorded, err := inst.Load(); err == nil && recorded.Phase == record.PhaseStarting {
			inst.NotifyWatchers() // the caller that waited for it to come up may be gone
		}
		inst.handleChanges(ctx, c, changed)
	}
	return ctx.Err() == nil // else only this supervisor ends
}

// stateFingerprint returns a text that differs between two states of a server whose QEMU
// has ended, or cannot be listened to, or whose directory was replaced. The first process
// that observes an exit records it.
func (inst *Instance) stateFingerprint(ctx context.Context) (string, error) {
	s, err := inst.Observe(ctx)
	if err != nil && !IsBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, s.driverState(), s.Broken), nil
}

// connectEvents connects to a QEMU's events, and supervises the server until it gets them.
// No notification reports the changes of a released server, so an event is a change too.
func (inst *Instance) connectEvents(ctx context.Context, changed chan struct{}) (c *qmp.Client, err error) {
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		c, err = inst.Dial(ctx, machine.EventsSocket, func(event qmp.Event) {
			inst.recordDiskEvent(event)
			if machine.IsResume(event) {
				go inst.setGuestClock(ctx)
			}
			if machine.ChangesState(event) {
				inst.NotifyWatchers()
				signal(changed)
			}
		})
	}()
	ticker := inst.Host.Clock.NewTicker(SuperviseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-connected:
			return c, err
		case <-ticker.C():
			inst.cutLogs()
			inst.tryCompleteStop(ctx)
		}
	}
}

// setGuestClock sets the clock of a guest that was resumed.
func (inst *Instance) setGuestClock(ctx context.Context) {
	if err := inst.SetGuestClock(ctx, inst.Host.Clock); err != nil && ctx.Err() == nil {
		inst.Host.Log.V(1).Info("Clock of the guest could not be set after a pause", "dir", inst.Path, "cause", err.Error())
	}
}

// handleChanges supervises a server until its QEMU closes the connection or its directory
// is moved. In the new place another supervisor waits for the events.
func (inst *Instance) handleChanges(ctx context.Context, c *qmp.Client, changed <-chan struct{}) {
	timer, logs := inst.Host.Clock.NewTimer(machine.PressEvery), inst.Host.Clock.NewTicker(inst.Host.LogBound.Every)
	defer timer.Stop()
	defer logs.Stop()
	inst.cutLogs()
	retry := inst.scheduleCompleteStop(ctx, timer)
	for inst.mayExist() {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
			return
		case <-logs.C():
			inst.cutLogs()
			if _, ok := inst.Host.UnansweredQueries.Load(inst.Path); !ok {
				continue
			}
		case <-changed:
		case <-retry:
		}
		retry = inst.scheduleCompleteStop(ctx, timer)
	}
}

// cutLogs cuts the machine's logs that are too large.
func (inst *Instance) cutLogs() {
	for _, name := range machine.LogFiles {
		if err := inst.CutLog(name, inst.Host.LogBound.Size); err != nil {
			inst.Host.Log.V(1).Info("Log could not be kept while it was cut", "log", inst.File(name), "cause", err.Error())
		}
	}
}

// scheduleCompleteStop continues a stop, and returns the channel that says when to do so
// again. It is nil where only a change of the server calls for that.
func (inst *Instance) scheduleCompleteStop(ctx context.Context, timer clock.Timer) <-chan time.Time {
	if !inst.tryCompleteStop(ctx) {
		return nil
	}
	timer.Reset(machine.PressEvery)
	return timer.C()
}

// tryCompleteStop is completeStop for callers that cannot act on its error. It notifies
// watchers of a QEMU that answers again, since no event does.
func (inst *Instance) tryCompleteStop(ctx context.Context) (isUnfinished bool) {
	isUnfinished, err := inst.completeStop(ctx)
	if err != nil {
		inst.Host.Log.V(1).Info("Machine could not be supervised", "dir", inst.Path, "cause", err.Error())
	} else if _, ok := inst.Host.UnansweredQueries.LoadAndDelete(inst.Path); ok {
		inst.NotifyWatchers()
	}
	return isUnfinished
}

// completeStop does what needs no further decision: it makes a QEMU quit whose guest has
// ended, and continues a stop that was begun. It holds no lock. So it sends everything over
// one connection, which cannot lead to a later run, and reads the record after connecting,
// so that the record is not of an earlier run.
func (inst *Instance) completeStop(ctx context.Context) (isUnfinished bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := inst.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		return false, err
	}
	defer c.Close()
	recorded, err := inst.Load()
	if err != nil || recorded.Phase != record.PhaseOn {
		return false, err
	}
	status, err := machine.QueryStatus(ctx, c)
	if err != nil {
		return false, err
	}
	if exit, ok := exitOf(status); ok {
		err = recorded.collectExit(ctx, c, exit)
		return err != nil, err
	}
	if recorded.Stop == nil {
		return false, nil
	}
	if recorded.ClaimPowerPress() {
		err = machine.PowerDown(ctx, c, status == machine.StatusPaused)
	}
	return true, err
}

// collectExit makes a QEMU quit once the exit of its guest is recorded. That of a released
// server is not recorded, since no caller asks for it.
func (inst *Instance) collectExit(ctx context.Context, c *qmp.Client, exit driver.Exit) error {
	exit.At = inst.Host.Clock.Now()
	if !inst.Retained {
		if _, err := inst.RecordExit(exit); err != nil {
			return err
		}
	}
	inst.NotifyWatchers()
	return c.Execute(ctx, "quit", nil, nil)
}
