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

// tendEvery is the interval between two looks at a server while another attendant has its
// events.
const tendEvery = 5 * time.Second

// attendant stays with one server while its QEMU runs. Of several attendants, in this and
// in other processes, QEMU gives its events to the first. The others wait for their turn
// and so learn of QEMU's end. They look after the server too, since the first may be
// halted.
type attendant struct {
	home  *instance
	poke  chan struct{} // has a value when something about the server changed
	again bool          // it changed, and the attendant may have missed that
}

// attend makes sure that a server of this cluster has an attendant.
func (w *watch) attend(ctx context.Context, h *instance) {
	if a := w.attendants[h.Path]; a != nil {
		a.again = true
		poke(a.poke)
		return
	}
	a := &attendant{home: h, poke: make(chan struct{}, 1)}
	w.attendants[h.Path] = a
	go func() {
		h.attend(ctx, a.poke)
		w.ended <- h.Path
	}()
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// release removes an attendant whose QEMU is gone, and starts another if the server
// changed meanwhile.
func (w *watch) release(ctx context.Context, path string) {
	a := w.attendants[path]
	delete(w.attendants, path)
	if a.again {
		w.attend(ctx, a.home)
	}
}

// wait waits until all attendants have ended.
func (w *watch) wait() {
	for len(w.attendants) > 0 {
		delete(w.attendants, <-w.ended)
	}
}

// news are the events that make a server worth another look.
var news = map[string]bool{
	"STOP": true, "RESUME": true, "RESET": true, "SHUTDOWN": true, "GUEST_PANICKED": true, "BLOCK_IO_ERROR": true,
}

// attend stays with a QEMU until it is gone.
func (inst *instance) attend(ctx context.Context, changed chan struct{}) {
	r, _ := inst.load()
	inst.supervise(ctx, changed)
	if r.Retained && ctx.Err() == nil {
		inst.driver.dropGroup(ctx, r.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// supervise listens to a QEMU until it is gone. It collects guests that have ended and
// presses the power button again for those that are to stop. If it cannot listen to a
// QEMU it retries: at once if something has changed, and else later, since its own
// notification would call it back without end.
func (inst *instance) supervise(ctx context.Context, changed chan struct{}) {
	for seen := ""; inst.attendOnce(ctx, changed); {
		now, err := inst.fingerprint(ctx)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil && now != seen {
			seen = now
			inst.driver.notify(inst.UID)
			continue
		}
		timer := inst.driver.Clock.NewTimer(tendEvery)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// attendOnce attends a QEMU once, and reports whether there may still be one to attend.
func (inst *instance) attendOnce(ctx context.Context, changed chan struct{}) (again bool) {
	c, err := inst.join(ctx, changed)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	if err == nil {
		defer c.Close()
		if r, err := inst.load(); err == nil && r.Phase == phaseStarting {
			inst.driver.notify(inst.UID) // the caller that waited for it to come up may be gone
		}
		inst.listen(ctx, c, changed)
	}
	return ctx.Err() == nil // else only the attendant has changed
}

// fingerprint looks at a server whose QEMU has ended, or cannot be listened to, or whose
// directory was replaced. The first process to look records how the run ended.
func (inst *instance) fingerprint(ctx context.Context) (seen string, err error) {
	s, err := inst.observe(ctx)
	if err != nil && !isBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, s.state(), s.broken), nil
}

// join connects to a QEMU's events, and tends the server until it gets them. No
// notification reports the changes of a released server, so an event is a change too.
func (inst *instance) join(ctx context.Context, changed chan struct{}) (c *qmp.Client, err error) {
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		c, err = inst.Dial(ctx, machine.EventsSocket, func(event qmp.Event) {
			inst.driver.faults.hear(inst.Path, event)
			if news[event.Name] {
				inst.driver.notify(inst.UID)
				poke(changed)
			}
		})
	}()
	ticker := inst.driver.Clock.NewTicker(tendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-joined:
			return c, err
		case <-ticker.C():
			inst.cutLogs()
			inst.tendNow(ctx)
		}
	}
}

// listen attends a server until its QEMU closes the connection or its directory is moved.
// In the new place another attendant waits for the events.
func (inst *instance) listen(ctx context.Context, c *qmp.Client, changed <-chan struct{}) {
	timer, logs := inst.driver.Clock.NewTimer(pressEvery), inst.driver.Clock.NewTicker(inst.driver.logs.every)
	defer timer.Stop()
	defer logs.Stop()
	inst.cutLogs()
	again := inst.tendAgain(ctx, timer)
	for inst.isThere() {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
			return
		case <-logs.C():
			inst.cutLogs()
			if _, silent := inst.driver.silent.Load(inst.Path); !silent {
				continue
			}
		case <-changed:
		case <-again:
		}
		again = inst.tendAgain(ctx, timer)
	}
}

// tendAgain tends a server, and returns the channel that says when to do so again. It is
// nil where only a change of the server calls for that.
func (inst *instance) tendAgain(ctx context.Context, timer clock.Timer) <-chan time.Time {
	if !inst.tendNow(ctx) {
		return nil
	}
	timer.Reset(pressEvery)
	return timer.C()
}

// tendNow is tend for callers that cannot act on its error. It notifies watchers of a
// QEMU that answers again, since no event does.
func (inst *instance) tendNow(ctx context.Context) (stopping bool) {
	stopping, err := inst.tend(ctx)
	if err != nil {
		inst.driver.Log.V(1).Info("Machine could not be tended", "dir", inst.Path, "cause", err.Error())
	} else if _, was := inst.driver.silent.LoadAndDelete(inst.Path); was {
		inst.driver.notify(inst.UID)
	}
	return stopping
}

// tend does what needs no further decision: it makes a QEMU quit whose guest has ended,
// and continues a stop that was begun. It holds no lock. So it sends everything over one
// connection, which cannot lead to a later run, and reads the record after connecting, so
// that the record is not of an earlier run.
func (inst *instance) tend(ctx context.Context) (unfinished bool, err error) {
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
	if end, over := ends[status]; over {
		err = r.collect(ctx, c, end)
		return err != nil, err
	}
	if r.Stop == nil {
		return false, nil
	}
	if inst.driver.pressed.due(r.UID, r.Run, inst.driver.Clock.Now()) {
		err = machine.PowerDown(ctx, c, status == machine.StatusPaused)
	}
	return true, err
}

// collect makes a QEMU quit once the end of its guest is recorded. The end of a released
// server is not recorded, since no caller asks for it.
func (inst *instance) collect(ctx context.Context, c *qmp.Client, end driver.Exit) error {
	end.At = inst.driver.Clock.Now()
	if !inst.Retained {
		if _, err := inst.keepEnd(end); err != nil {
			return err
		}
	}
	inst.driver.notify(inst.UID)
	return c.Execute(ctx, "quit", nil, nil)
}
