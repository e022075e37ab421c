// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/qmp"
)

// superviseEvery is the interval between two checks of a server while another supervisor
// has its events.
const superviseEvery = 5 * time.Second

// stateEvents are the events of QEMU that change the reported state of a server.
var stateEvents = map[string]bool{
	"STOP": true, "RESUME": true, "RESET": true, "SHUTDOWN": true, "GUEST_PANICKED": true, "BLOCK_IO_ERROR": true,
}

// logBound is how large a machine's logs get. QEMU writes them and knows no bound, so all
// supervisors of the machine check them periodically: one of them may be halted. Nothing
// checks them while no controller runs; the next controller cuts what has grown.
type logBound struct {
	size  int64
	every time.Duration
}

var defaultLogBound = logBound{size: 1 << 20, every: 5 * time.Second}

// supervisor follows one server while its QEMU runs. Of several supervisors, in this and in
// other processes, QEMU gives its events to the first. The others wait for their turn, and
// so learn of QEMU's end. They supervise the server too, since the first may be halted.
type supervisor struct {
	instance *instance
	changed  chan struct{} // has a value when something about the server changed
	restart  bool          // it changed, and the supervisor may have missed that
}

// startSupervisor makes sure that a server of this cluster has a supervisor.
func (w *watch) startSupervisor(ctx context.Context, inst *instance) {
	if s := w.supervisors[inst.Path]; s != nil {
		s.restart = true
		signal(s.changed)
		return
	}
	s := &supervisor{instance: inst, changed: make(chan struct{}, 1)}
	w.supervisors[inst.Path] = s
	go func() {
		inst.supervise(ctx, s.changed)
		w.ended <- inst.Path
	}()
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replaceSupervisor removes a supervisor whose QEMU is gone, and starts another if the
// server changed meanwhile.
func (w *watch) replaceSupervisor(ctx context.Context, path string) {
	s := w.supervisors[path]
	delete(w.supervisors, path)
	if s.restart {
		w.startSupervisor(ctx, s.instance)
	}
}

// waitSupervisors waits until all supervisors have ended.
func (w *watch) waitSupervisors() {
	for len(w.supervisors) > 0 {
		delete(w.supervisors, <-w.ended)
	}
}

// supervise follows a QEMU until it is gone.
func (inst *instance) supervise(ctx context.Context, changed chan struct{}) {
	recorded, _ := inst.load()
	inst.superviseUntilGone(ctx, changed)
	if recorded.Retained && ctx.Err() == nil {
		inst.driver.removeGroup(ctx, recorded.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// superviseUntilGone collects the exits of guests, and presses the power button again for
// those that are to stop. If it cannot listen to a QEMU it retries: at once if something
// has changed, and else later, since its own notification would call it back without end.
func (inst *instance) superviseUntilGone(ctx context.Context, changed chan struct{}) {
	for last := ""; inst.superviseOnce(ctx, changed); {
		now, err := inst.stateFingerprint(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil && now != last {
			last = now
			inst.notifyWatchers()
			continue
		}
		timer := inst.driver.Clock.NewTimer(superviseEvery)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// superviseOnce follows one connection to a QEMU's events, and reports whether there may
// still be a QEMU.
func (inst *instance) superviseOnce(ctx context.Context, changed chan struct{}) (isLeft bool) {
	c, err := inst.connectEvents(ctx, changed)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	if err == nil {
		defer c.Close()
		if recorded, err := inst.load(); err == nil && recorded.Phase == phaseStarting {
			inst.notifyWatchers() // the caller that waited for it to come up may be gone
		}
		inst.handleChanges(ctx, c, changed)
	}
	return ctx.Err() == nil // else only this supervisor ends
}

// stateFingerprint returns a text that differs between two states of a server whose QEMU
// has ended, or cannot be listened to, or whose directory was replaced. The first process
// that observes an exit records it.
func (inst *instance) stateFingerprint(ctx context.Context) (string, error) {
	s, err := inst.observe(ctx)
	if err != nil && !isBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, s.driverState(), s.broken), nil
}

// connectEvents connects to a QEMU's events, and supervises the server until it gets them.
// No notification reports the changes of a released server, so an event is a change too.
func (inst *instance) connectEvents(ctx context.Context, changed chan struct{}) (c *qmp.Client, err error) {
	connected := make(chan struct{})
	go func() {
		defer close(connected)
		c, err = inst.Dial(ctx, machine.EventsSocket, func(event qmp.Event) {
			inst.recordDiskEvent(event)
			if stateEvents[event.Name] {
				inst.notifyWatchers()
				signal(changed)
			}
		})
	}()
	ticker := inst.driver.Clock.NewTicker(superviseEvery)
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

// handleChanges supervises a server until its QEMU closes the connection or its directory
// is moved. In the new place another supervisor waits for the events.
func (inst *instance) handleChanges(ctx context.Context, c *qmp.Client, changed <-chan struct{}) {
	timer, logs := inst.driver.Clock.NewTimer(pressEvery), inst.driver.Clock.NewTicker(inst.driver.logs.every)
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
			if _, ok := inst.driver.unansweredQueries.Load(inst.Path); !ok {
				continue
			}
		case <-changed:
		case <-retry:
		}
		retry = inst.scheduleCompleteStop(ctx, timer)
	}
}

// cutLogs cuts the machine's logs that are too large.
func (inst *instance) cutLogs() {
	for _, name := range machine.LogFiles {
		if err := inst.CutLog(name, inst.driver.logs.size); err != nil {
			inst.driver.Log.V(1).Info("Log could not be kept while it was cut", "log", inst.File(name), "cause", err.Error())
		}
	}
}

// scheduleCompleteStop continues a stop, and returns the channel that says when to do so
// again. It is nil where only a change of the server calls for that.
func (inst *instance) scheduleCompleteStop(ctx context.Context, timer clock.Timer) <-chan time.Time {
	if !inst.tryCompleteStop(ctx) {
		return nil
	}
	timer.Reset(pressEvery)
	return timer.C()
}

// tryCompleteStop is completeStop for callers that cannot act on its error. It notifies
// watchers of a QEMU that answers again, since no event does.
func (inst *instance) tryCompleteStop(ctx context.Context) (isUnfinished bool) {
	isUnfinished, err := inst.completeStop(ctx)
	if err != nil {
		inst.driver.Log.V(1).Info("Machine could not be supervised", "dir", inst.Path, "cause", err.Error())
	} else if _, ok := inst.driver.unansweredQueries.LoadAndDelete(inst.Path); ok {
		inst.notifyWatchers()
	}
	return isUnfinished
}

// completeStop does what needs no further decision: it makes a QEMU quit whose guest has
// ended, and continues a stop that was begun. It holds no lock. So it sends everything over
// one connection, which cannot lead to a later run, and reads the record after connecting,
// so that the record is not of an earlier run.
func (inst *instance) completeStop(ctx context.Context) (isUnfinished bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := inst.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		return false, err
	}
	defer c.Close()
	recorded, err := inst.load()
	if err != nil || recorded.Phase != phaseOn {
		return false, err
	}
	status, err := machine.QueryStatus(ctx, c)
	if err != nil {
		return false, err
	}
	if exit, ok := exitsByStatus[status]; ok {
		err = recorded.collectExit(ctx, c, exit)
		return err != nil, err
	}
	if recorded.Stop == nil {
		return false, nil
	}
	if recorded.claimPowerPress() {
		err = machine.PowerDown(ctx, c, status == machine.StatusPaused)
	}
	return true, err
}

// collectExit makes a QEMU quit once the exit of its guest is recorded. That of a released
// server is not recorded, since no caller asks for it.
func (inst *instance) collectExit(ctx context.Context, c *qmp.Client, exit driver.Exit) error {
	exit.At = inst.driver.Clock.Now()
	if !inst.Retained {
		if _, err := inst.recordExit(exit); err != nil {
			return err
		}
	}
	inst.notifyWatchers()
	return c.Execute(ctx, "quit", nil, nil)
}
