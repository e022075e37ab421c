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
		w.driver.attend(ctx, h, a.poke)
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
func (d *Driver) attend(ctx context.Context, h *instance, changed chan struct{}) {
	r, _ := h.load()
	d.supervise(ctx, h, changed)
	if r.Retained && ctx.Err() == nil {
		d.dropGroup(ctx, r.CPUGroup) // it is not started again, and not deleted by Drover
	}
}

// supervise listens to a QEMU until it is gone. It collects guests that have ended and
// presses the power button again for those that are to stop. If it cannot listen to a
// QEMU it retries: at once if something has changed, and else later, since its own
// notification would call it back without end.
func (d *Driver) supervise(ctx context.Context, h *instance, changed chan struct{}) {
	for seen := ""; d.attendOnce(ctx, h, changed); {
		now, err := d.fingerprint(ctx, h)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		if err == nil && now != seen {
			seen = now
			d.notify(h.UID)
			continue
		}
		timer := d.Clock.NewTimer(tendEvery)
		select {
		case <-ctx.Done():
		case <-timer.C():
		}
		timer.Stop()
	}
}

// attendOnce attends a QEMU once, and reports whether there may still be one to attend.
func (d *Driver) attendOnce(ctx context.Context, h *instance, changed chan struct{}) (again bool) {
	c, err := d.join(ctx, h, changed)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return false
	}
	if err == nil {
		defer c.Close()
		if r, err := h.load(); err == nil && r.Phase == phaseStarting {
			d.notify(h.UID) // the caller that waited for it to come up may be gone
		}
		d.listen(ctx, h, c, changed)
	}
	return ctx.Err() == nil // else only the attendant has changed
}

// fingerprint looks at a server whose QEMU has ended, or cannot be listened to, or whose
// directory was replaced. The first process to look records how the run ended.
func (d *Driver) fingerprint(ctx context.Context, h *instance) (seen string, err error) {
	s, err := d.observe(ctx, h)
	if err != nil && !isBroken(err) {
		return "", err
	}
	return fmt.Sprint(s.ID, s.Run, s.state(), s.broken), nil
}

// join connects to a QEMU's events, and tends the server until it gets them. No
// notification reports the changes of a released server, so an event is a change too.
func (d *Driver) join(ctx context.Context, h *instance, changed chan struct{}) (c *qmp.Client, err error) {
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		c, err = h.Dial(ctx, machine.EventsSocket, func(event qmp.Event) {
			d.faults.hear(h.Path, event)
			if news[event.Name] {
				d.notify(h.UID)
				poke(changed)
			}
		})
	}()
	ticker := d.Clock.NewTicker(tendEvery)
	defer ticker.Stop()
	for {
		select {
		case <-joined:
			return c, err
		case <-ticker.C():
			d.cutLogs(h)
			d.tendNow(ctx, h)
		}
	}
}

// listen attends a server until its QEMU closes the connection or its directory is moved.
// In the new place another attendant waits for the events.
func (d *Driver) listen(ctx context.Context, h *instance, c *qmp.Client, changed <-chan struct{}) {
	timer, logs := d.Clock.NewTimer(pressEvery), d.Clock.NewTicker(d.logs.every)
	defer timer.Stop()
	defer logs.Stop()
	d.cutLogs(h)
	again := d.tendAgain(ctx, h, timer)
	for h.isThere() {
		select {
		case <-ctx.Done():
			return
		case <-c.Done():
			return
		case <-logs.C():
			d.cutLogs(h)
			if _, silent := d.silent.Load(h.Path); !silent {
				continue
			}
		case <-changed:
		case <-again:
		}
		again = d.tendAgain(ctx, h, timer)
	}
}

// tendAgain tends a server, and returns the channel that says when to do so again. It is
// nil where only a change of the server calls for that.
func (d *Driver) tendAgain(ctx context.Context, h *instance, timer clock.Timer) <-chan time.Time {
	if !d.tendNow(ctx, h) {
		return nil
	}
	timer.Reset(pressEvery)
	return timer.C()
}

// tendNow is tend for callers that cannot act on its error. It notifies watchers of a
// QEMU that answers again, since no event does.
func (d *Driver) tendNow(ctx context.Context, h *instance) (stopping bool) {
	stopping, err := d.tend(ctx, h)
	if err != nil {
		d.Log.V(1).Info("Machine could not be tended", "dir", h.Path, "cause", err.Error())
	} else if _, was := d.silent.LoadAndDelete(h.Path); was {
		d.notify(h.UID)
	}
	return stopping
}

// tend does what needs no further decision: it makes a QEMU quit whose guest has ended,
// and continues a stop that was begun. It holds no lock. So it sends everything over one
// connection, which cannot lead to a later run, and reads the record after connecting, so
// that the record is not of an earlier run.
func (d *Driver) tend(ctx context.Context, h *instance) (unfinished bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, machine.CommandWithin)
	defer cancel()
	c, err := h.Dial(ctx, machine.ControlSocket, nil)
	if err != nil {
		return false, err
	}
	defer c.Close()
	r, err := h.load()
	if err != nil || r.Phase != phaseOn {
		return false, err
	}
	status, err := machine.QueryStatus(ctx, c)
	if err != nil {
		return false, err
	}
	if end, over := ends[status]; over {
		err = d.collect(ctx, c, r, end)
		return err != nil, err
	}
	if r.Stop == nil {
		return false, nil
	}
	if d.pressed.due(r.UID, r.Run, d.Clock.Now()) {
		err = machine.PowerDown(ctx, c, status == machine.StatusPaused)
	}
	return true, err
}

// collect makes a QEMU quit once the end of its guest is recorded. The end of a released
// server is not recorded, since no caller asks for it.
func (d *Driver) collect(ctx context.Context, c *qmp.Client, r *instance, end driver.Exit) error {
	end.At = d.Clock.Now()
	if !r.Retained {
		if _, err := d.keepEnd(r, end); err != nil {
			return err
		}
	}
	d.notify(r.UID)
	return c.Execute(ctx, "quit", nil, nil)
}
