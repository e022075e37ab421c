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
	ErrShut       = errors.New("this process is about to give up the Lease")
)

// lookAgain is how often the guard checks its own clock while calls run. Timers
// stop while the host is suspended, and that clock does not.
const lookAgain = time.Second

// Guard is the right to act. A call that changes something on an engine must Enter
// first. The Lock opens the guard, extends it with each renewal and closes it.
type Guard struct {
	clock clock.WithDelayedExecution
	boot  func() time.Duration

	mu       sync.Mutex
	endless  bool
	closed   error // the reason; nil while open
	epoch    uint64
	until    time.Duration
	renewed  time.Duration
	calls    map[*call]struct{}
	watching bool
	refusals uint64
}

type call struct{ cancel context.CancelCauseFunc }

// NewGuard returns a closed guard. boot is BootTime, except in tests.
func NewGuard(c clock.WithDelayedExecution, boot func() time.Duration) *Guard {
	return &Guard{clock: c, boot: boot, closed: ErrNotLeading, calls: map[*call]struct{}{}}
}

// Always returns a guard that is always open, for a process that acts without
// election.
func Always(epoch uint64) *Guard {
	return &Guard{endless: true, epoch: epoch, calls: map[*call]struct{}{}}
}

// Epoch returns the epoch of this process's leadership, 0 before it leads.
func (g *Guard) Epoch() uint64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.epoch
}

// Enter begins a call. It fails when the guard is closed or about to lapse. The
// returned context ends when the guard closes. The caller must call leave when the
// call ends.
func (g *Guard) Enter(ctx context.Context) (guarded context.Context, epoch uint64, leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.refuse(); err != nil {
		g.refusals++
		return nil, 0, nil, err
	}
	guarded, cancel := context.WithCancelCause(ctx)
	c := &call{cancel: cancel}
	g.calls[c] = struct{}{}
	g.watch()
	return guarded, g.epoch, func() { g.leave(c) }, nil
}

func (g *Guard) refuse() error {
	switch {
	case g.closed != nil:
		return g.closed
	case !g.endless && g.boot()+Spare > g.until:
		return ErrLapsed
	}
	return nil
}

// Check returns an error while this process is not certain to lead. It is enough
// for a caller that only reports.
func (g *Guard) Check() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.closed != nil:
		return g.closed
	case !g.endless && g.boot() >= g.until:
		return ErrLapsed
	}
	return nil
}

func (g *Guard) leave(c *call) {
	c.cancel(nil)
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.calls, c)
}

// watch arranges that running calls are cancelled when the guard lapses. The caller
// holds the lock.
func (g *Guard) watch() {
	if g.watching || g.endless || len(g.calls) == 0 {
		return
	}
	g.watching = true
	g.clock.AfterFunc(min(max(g.until-g.boot(), 0), lookAgain), g.look)
}

func (g *Guard) look() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.watching = false
	if g.boot() >= g.until {
		g.cut(ErrLapsed)
		return
	}
	g.watch()
}

func (g *Guard) cut(cause error) {
	for c := range g.calls {
		c.cancel(cause)
	}
}

// open admits calls under an epoch. sent is when the write that took the Lease was
// sent.
func (g *Guard) open(epoch uint64, sent, term time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if errors.Is(g.closed, ErrNotLeading) {
		g.closed = nil
	}
	g.epoch, g.renewed, g.until = epoch, sent, sent+term
}

// extend records a renewal. It does not open a closed guard.
func (g *Guard) extend(sent, term time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if sent > g.renewed {
		g.renewed, g.until = sent, sent+term
	}
}

// shut refuses further calls and lets those in flight finish.
func (g *Guard) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed == nil {
		g.closed = ErrShut
	}
}

// revoke refuses further calls and cancels those in flight.
func (g *Guard) revoke(cause error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = cause
	g.cut(cause)
}

// InFlight returns the number of calls that have not left.
func (g *Guard) InFlight() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.calls)
}

// lapsed reports whether the guard was opened and has expired since.
func (g *Guard) lapsed() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closed == nil && !g.endless && g.boot() >= g.until
}

// state returns the values that the metrics show.
func (g *Guard) state() (refusals uint64, sinceRenewal time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.endless {
		sinceRenewal = g.boot() - g.renewed
	}
	return g.refusals, sinceRenewal
}
