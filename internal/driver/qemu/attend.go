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

// superviseEvery is the interval between two looks at a server while another attendant has its
// events.
const superviseEvery = 5 * time.Second

// supervisor stays with one server while its QEMU runs. Of several attendants, in this and
// in other processes, QEMU gives its events to the first. The others wait for their turn
// and so learn of QEMU's end. They look after the server too, since the first may be
// halted.
type supervisor struct {
	instance *instance
	poke     chan struct{} // has a value when something about the server changed
	again    bool          // it changed, and the attendant may have missed that
}

// startSupervisor makes sure that a server of this cluster has an attendant.
func (w *watch) startSupervisor(ctx context.Context, h *instance) {
	if a := w.supervisors[h.Path]; a != nil {
		a.again = true
		wake(a.poke)
		return
	}
	a := &supervisor{instance: h, poke: make(chan struct{}, 1)}
	w.supervisors[h.Path] = a
	go func() {
		h.supervise(ctx, a.poke)
		w.ended <- h.Path
	}()
}

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replaceSupervisor removes an attendant whose QEMU is gone, and starts another if the server
// changed meanwhile.
func (w *watch) replaceSupervisor(ctx context.Context, path string) {
	a := w.supervisors[path]
	delete(w.supervisors, path)
	if a.again {
		w.startSupervisor(ctx, a.instance)
	}
}

// waitSupervisors waits until all attendants have ended.
func (w *watch) waitSupervisors() {
	for len(w.supervisors) > 0 {
		delete(w.supervisors, <-w.ended)
	}
}

// stateEvents are the events that make a server worth another look.
var stateEvents = map[string]bool{
	"STOP": true, "RESUME": true, "RESET": true, "SHUTDOWN": true, "GUEST_PANICKED": true, "BLOCK_IO_ERROR": true,
}

// supervise stays with a QEMU until it is gone.
func (inst *instance) supervise(ctx context.Context, changed chan struct{}) {
	r, _ := inst.load()
	inst.superviseUntilGone(ctx, changed)
	if r.Retained && ctx.Err() == nil {
		inst.driver.removeGroup(ctx, r.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// superviseUntilGone listens to a QEMU until it is gone. It collects guests that have ended and
// presses the power button again for those that are to stop. If it cannot listen to a
// QEMU it retries: at once if something has changed, and else later, since its own
// notification would call it back without end.
func (inst *instance) superviseUntilGone(ctx context.Context, changed chan struct{}) {
	for seen := ""; inst.superviseOnce(ctx, changed); {
		now, err := inst.stateFingerprint(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil && now != seen {
			seen = now
			inst.driver.notify(inst.UID)
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

// superviseOnce attends a QEMU once, and reports whether there may still be one to attend.
func (inst *instance) superviseOnce(ctx context.Context, changed chan struct{}) (again bool) {
	c, err := inst.connectEvents(ctx, changed)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	if err == nil {
		defer c.Close()
		if r, err := inst.load(); err == nil && r.Phase == phaseStarting {
			inst.driver.notify(inst.UID) // the caller that waited for it to come up may be gone
		}
		inst.handleChanges(ctx, c, changed)
	}
	return ctx.Err() == nil // else only the attendant has changed
}

// stateFingerprint looks at a server whose QEMU has ended, or cannot be listened to, or whose
// directory was replaced. The first process to look records how the run ended.
func (inst *instance) stateFingerprint(ctx context.Context) (seen string, err error) {
	s, err := inst.observe(ctx)
	if err != nil && !isBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, s.driverState(), s.broken), nil
}

// connectEvents connects to a QEMU's events, and tends the server until it gets them. No
// notification reports the changes of a released server, so an event is a change too.
func (inst *instance) connectEvents(ctx context.Context, changed chan struct{}) (c *qmp.Client, err error) {
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		c, err = inst.Dial(ctx, machine.EventsSocket, func(event qmp.Event) {
			inst.recordDiskEvent(event)
			if stateEvents[event.Name] {
				inst.driver.notify(inst.UID)
				wake(changed)
			}
		})
	}()
	ticker := inst.driver.Clock.NewTicker(superviseEvery)
	defer ticker.Stop()
	for {
		select {
		case <-joined:
			return c, err
		case <-ticker.C():
			inst.cutLogs()
			inst.tryCompleteStop(ctx)
		}
	}
}

// handleChanges attends a server until its QEMU closes the connection or its directory is moved.
// In the new place another attendant waits for the events.
func (inst *instance) handleChanges(ctx context.Context, c *qmp.Client, changed <-chan struct{}) {
	timer, logs := inst.driver.Clock.NewTimer(pressEvery), inst.driver.Clock.NewTicker(inst.driver.logs.every)
	defer timer.Stop()
	defer logs.Stop()
	inst.cutLogs()
	again := inst.scheduleCompleteStop(ctx, timer)
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
		case <-again:
		}
		again = inst.scheduleCompleteStop(ctx, timer)
	}
}

// scheduleCompleteStop tends a server, and returns the channel that says when to do so again. It is
// nil where only a change of the server calls for that.
func (inst *instance) scheduleCompleteStop(ctx context.Context, timer clock.Timer) <-chan time.Time {
	if !inst.tryCompleteStop(ctx) {
		return nil
	}
	timer.Reset(pressEvery)
	return timer.C()
}

// tryCompleteStop is tend for callers that cannot act on its error. It notifies watchers of a
// QEMU that answers again, since no event does.
func (inst *instance) tryCompleteStop(ctx context.Context) (stopping bool) {
	stopping, err := inst.completeStop(ctx)
	if err != nil {
		inst.driver.Log.V(1).Info("Machine could not be tended", "dir", inst.Path, "cause", err.Error())
	} else if _, was := inst.driver.unansweredQueries.LoadAndDelete(inst.Path); was {
		inst.driver.notify(inst.UID)
	}
	return stopping
}

// completeStop does what needs no further decision: it makes a QEMU quit whose guest has ended,
// and continues a stop that was begun. It holds no lock. So it sends everything over one
// connection, which cannot lead to a later run, and reads the record after connecting, so
// that the record is not of an earlier run.
func (inst *instance) completeStop(ctx context.Context) (unfinished bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := inst.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		return false, err
	}
	defer c.Close()
	r, err := inst.load()
	if err != nil || r.Phase != phaseOn {
		return false, err
	}
	status, err := machine.QueryStatus(ctx, c)
	if err != nil {
		return false, err
	}
	if end, over := exitsByStatus[status]; over {
		err = r.collectExit(ctx, c, end)
		return err != nil, err
	}
	if r.Stop == nil {
		return false, nil
	}
	if r.claimPowerPress() {
		err = machine.PowerDown(ctx, c, status == machine.StatusPaused)
	}
	return true, err
}

// collectExit makes a QEMU quit once the end of its guest is recorded. The end of a released
// server is not recorded, since no caller asks for it.
func (inst *instance) collectExit(ctx context.Context, c *qmp.Client, end driver.Exit) error {
	end.At = inst.driver.Clock.Now()
	if !inst.Retained {
		if _, err := inst.recordExit(end); err != nil {
			return err
		}
	}
	inst.driver.notify(inst.UID)
	return c.Execute(ctx, "quit", nil, nil)
}
