// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package supervisor

import (
	"cmp"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/image/health"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/failure"
)

// progress has the state of a run, and the requests to end it. It is safe for concurrent use.
type progress struct {
	clock clock.PassiveClock

	mu          sync.Mutex
	accelerator string
	gracePeriod time.Duration
	startedAt   time.Time // of the guest, zero until it was first resumed
	stop        *stop
	forced      string // why the run must end at once
	waitCause   error  // why the guest waits
	fault       machine.DiskFault
	health      health.State
}

// stop is a stop that was begun. It cannot be cancelled, since the guest may already shut down.
type stop struct {
	id       string
	deadline time.Time // zero for never
}

func (p *progress) setAccelerator(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.accelerator = name
}

// noteStart sets when the guest was first resumed; zero means now.
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

// beginStop begins a stop, unless the last stop has the same ID. A gracePeriod of 0 means no limit.
func (p *progress) beginStop(id string, gracePeriod time.Duration) (isNew bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop != nil && p.stop.id == id {
		return false
	}
	p.stop = &stop{id: id}
	if gracePeriod > 0 {
		p.stop.deadline = p.clock.Now().Add(gracePeriod)
	}
	return true
}

// forceEnd requests that the run ends at once. The reason of the first request remains.
func (p *progress) forceEnd(reason string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forced = cmp.Or(p.forced, reason)
}

// TooLate is the message of the end of a guest that exceeded its grace period.
const TooLate = "the guest did not shut down in its time"

// forceReason returns why the run must be ended by force, or "".
func (p *progress) forceReason() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.forced == "" && p.stop != nil && !p.stop.deadline.IsZero() && !p.clock.Now().Before(p.stop.deadline) {
		return TooLate
	}
	return p.forced
}

// setWait sets why the guest waits, nil if it runs.
func (p *progress) setWait(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waitCause = cause
}

// setFault sets the last disk error that paused the guest.
func (p *progress) setFault(fault machine.DiskFault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fault = fault
}

// lastFault returns the last disk error that paused the guest, which may be empty.
func (p *progress) lastFault() machine.DiskFault {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.fault
}

func (p *progress) setHealth(state health.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.health = state
}

// checkAfter returns how long to wait before the next check of the guest.
func (p *progress) checkAfter() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stop == nil && p.waitCause == nil {
		return checkEvery
	}
	after := min(machine.PressEvery, machine.ResumeAgain)
	if p.stop == nil || p.stop.deadline.IsZero() {
		return after
	}
	if timeLeft := p.stop.deadline.Sub(p.clock.Now()); timeLeft > 0 { // else an attempt to end the run has failed
		return min(after, timeLeft)
	}
	return after
}

// currentStatus returns the part of the status that is known without asking QEMU.
func (p *progress) currentStatus() control.Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := control.Status{State: control.StateRunning, StartedAt: p.startedAt, Waits: waitKind(p.waitCause), Fault: reportFault(p.fault), Health: p.health}
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

// checkRunning fails with failure.ErrNotRunning unless the guest was started and no stop has begun.
func (p *progress) checkRunning() error {
	if p.currentStatus().State != control.StateRunning {
		return failure.ErrNotRunning
	}
	return nil
}

// reportFault returns a disk error as a status has it.
func reportFault(f machine.DiskFault) control.Fault {
	return control.Fault{Node: f.Node, Operation: f.Operation, Reason: f.Reason}
}

// waitKind returns the kind of a wait, by the error that explains it.
func waitKind(cause error) control.Wait {
	switch {
	case errors.Is(cause, machine.ErrNoRoom):
		return control.WaitRoom
	case errors.Is(cause, machine.ErrDiskFault):
		return control.WaitDisk
	}
	return control.WaitNone
}
