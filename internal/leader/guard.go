// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// The reasons why the guard refuses a call, or has cancelled one.
var (
	ErrNotLeading = errors.New("this process does not lead")
	ErrLapsed     = errors.New("the Lease was not renewed in time")
	ErrReleasing  = errors.New("this process is about to release the Lease")
)

// checkPeriod is how often the guard checks whether it has lapsed while calls run. One
// timer would not do: timers stop while the host is suspended, and the guard's term does not.
const checkPeriod = time.Second

// Guard is the right to act. A call that changes something on an engine must call Enter
// first. The Lock opens the guard, extends it with each renewal and closes it.
type Guard struct {
	clock clock.WithDelayedExecution
	boot  func() time.Duration

	mu             sync.Mutex
	alwaysOpen     bool
	closed         error // why the guard is closed; nil while it is open
	epoch          uint64
	validUntil     time.Duration
	renewed        time.Duration
	calls          map[*call]struct{}
	checkScheduled bool
	refusals       uint64
}

type call struct{ cancel context.CancelCauseFunc }

// NewGuard returns a closed guard. boot is BootTime, except in tests.
func NewGuard(c clock.WithDelayedExecution, boot func() time.Duration) *Guard {
	return &Guard{clock: c, boot: boot, closed: ErrNotLeading, calls: map[*call]struct{}{}}
}

// AlwaysOpen returns a guard that is always open, for a process that acts without
// election.
func AlwaysOpen(epoch uint64) *Guard {
	return &Guard{alwaysOpen: true, epoch: epoch, calls: map[*call]struct{}{}}
}

// Epoch returns the epoch of this process's leadership, 0 before it leads.
func (g *Guard) Epoch() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.epoch
}

// Enter begins a call. It fails if the guard is closed or about to lapse. The returned context ends when
// the guard lapses or is revoked. Package fencing then returns driver.ErrDeposed. A release lets calls
// finish. The caller must call leave when the call ends.
func (g *Guard) Enter(ctx context.Context) (guarded context.Context, epoch uint64, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.admissionError(); err != nil {
		g.refusals++
		return nil, 0, nil, err
	}
	guarded, cancel := context.WithCancelCause(ctx)
	c := &call{cancel: cancel}
	g.calls[c] = struct{}{}
	g.scheduleCheck()
	return guarded, g.epoch, func() { g.endCall(c) }, nil
}

func (g *Guard) admissionError() error {
	switch {
	case g.closed != nil:
		return g.closed
	case !g.alwaysOpen && g.boot()+Spare > g.validUntil:
		return ErrLapsed
	}
	return nil
}

// Check returns an error while this process is not certain to lead. It is enough for a
// caller that only writes a status.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return g.closed
	case !g.alwaysOpen && g.boot() >= g.validUntil:
		return ErrLapsed
	}
	return nil
}

func (g *Guard) endCall(c *call) {
	c.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c)
}

// scheduleCheck arranges that running calls are cancelled when the guard lapses. The
// caller holds the lock.
func (g *Guard) scheduleCheck() {
	if g.checkScheduled || g.alwaysOpen || len(g.calls) == 0 {
		return
	}
	g.checkScheduled = true
	g.clock.AfterFunc(min(g.validUntil-g.boot(), checkPeriod), g.checkExpiry)
}

func (g *Guard) checkExpiry() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.checkScheduled = false
	if g.boot() >= g.validUntil {
		g.cancelCalls(ErrLapsed)
		return
	}
	g.scheduleCheck()
}

func (g *Guard) cancelCalls(cause error) {
	for c := range g.calls {
		c.cancel(cause)
	}
}

// open admits calls under an epoch. sent is when the write that acquired the Lease was
// sent, from which the term counts.
func (g *Guard) open(epoch uint64, sent, term time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(g.closed, ErrNotLeading) {
		g.closed = nil
	}
	g.epoch, g.renewed, g.validUntil = epoch, sent, sent+term
}

// extend records a renewal. It does not open a closed guard.
func (g *Guard) extend(sent, term time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sent > g.renewed {
		g.renewed, g.validUntil = sent, sent+term
	}
}

// closeForRelease refuses further calls and lets the calls in flight finish.
func (g *Guard) closeForRelease() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = ErrReleasing
	}
}

// revoke refuses further calls and cancels the calls in flight.
func (g *Guard) revoke(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = cause
	g.cancelCalls(cause)
}

// InFlight returns the number of calls that have not ended.
func (g *Guard) InFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.calls)
}

// hasLapsed reports whether the guard was opened and has expired since.
func (g *Guard) hasLapsed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed == nil && !g.alwaysOpen && g.boot() >= g.validUntil
}

// metricValues returns the values that the metrics show.
func (g *Guard) metricValues() (refusals uint64, sinceRenewal time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.alwaysOpen {
		sinceRenewal = g.boot() - g.renewed
	}
	return g.refusals, sinceRenewal
}
