// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// progress has the progress of a run and the requests to it. It may be used by several goroutines.
type progress struct {
	clock clock.PassiveClock

	mu          sync.Mutex
	accelerator string
	gracePeriod time.Duration
	startedAt   time.Time // of the guest, zero until it was resumed
	stop        *stop
	forced      string // why the run is to end at once
	waits       error  // what the guest waits for
	fault       control.Fault
}

// stop is a stop that was begun. It cannot be taken back: a power button that was pressed cannot be
// released.
type stop struct {
	id string
	by time.Time // zero for never
}

func (p *progress) setAccelerator(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accelerator = name
}

// noteStart notes when the guest was resumed first; zero means now.
func (p *progress) noteStart(started time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.startedAt = started; started.IsZero() {
		p.startedAt = p.clock.Now()
	}
}

func (p *progress) setGracePeriod(period time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gracePeriod = period
}

func (p *progress) currentGracePeriod() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.gracePeriod
}

// beginStop begins a stop, and reports whether it is another than the one before.
func (p *progress) beginStop(id string, within time.Duration) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil && p.stop.id == id {
		return false
	}
	p.stop = &stop{id: id}
	if within > 0 {
		p.stop.by = p.clock.Now().Add(within)
	}
	return true
}

// forceEnd notes why the run is to end at once. The first reason counts.
func (p *progress) forceEnd(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forced = cmp.Or(p.forced, why)
}

// TooLate is the message of the end of a guest that had to be ended by force.
const TooLate = "the guest did not shut down in its time"

// findForce returns why the run is to be ended by force, if it is.
func (p *progress) findForce() (why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forced == "" && p.stop != nil && !p.stop.by.IsZero() && !p.clock.Now().Before(p.stop.by) {
		return TooLate
	}
	return p.forced
}

// setWait notes what the guest waits for; nil means nothing.
func (p *progress) setWait(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waits = cause
}

// setFault notes the disk error that the guest waited for last.
func (p *progress) setFault(fault machine.DiskFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = control.Fault{Node: fault.Node, Operation: fault.Operation, Reason: fault.Reason}
}

// checkAfter returns when to look at the guest next.
func (p *progress) checkAfter() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop == nil && p.waits == nil {
		return checkEvery
	}
	after := min(machine.PressEvery, machine.ResumeAgain)
	if p.stop == nil || p.stop.by.IsZero() {
		return after
	}
	if left := p.stop.by.Sub(p.clock.Now()); left > 0 { // else the run could not be ended just now
		return min(after, left)
	}
	return after
}

// currentStatus returns what is known without QEMU.
func (p *progress) currentStatus() control.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := control.Status{State: control.StateRunning, StartedAt: p.startedAt, Waits: waitOf(p.waits), Fault: p.fault}
	if p.startedAt.IsZero() {
		out.State = control.StateStarting
	} else {
		out.Accelerator = p.accelerator
	}
	if p.stop != nil {
		out.State = control.StateStopping
	}
	return out
}

// checkRunning refuses what only a guest can get that was started and is not to stop.
func (p *progress) checkRunning() error {
	if p.currentStatus().State != control.StateRunning {
		return failure.ErrNotRunning
	}
	return nil
}

// waitOf returns what a guest waits for, by the error that explains it.
func waitOf(cause error) control.Wait {
	switch {
	case errors.Is(cause, machine.ErrNoRoom):
		return control.WaitRoom
	case errors.Is(cause, machine.ErrDiskFault):
		return control.WaitDisk
	}
	return control.WaitNone
}
