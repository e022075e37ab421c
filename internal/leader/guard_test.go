// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/test/assert"
)

// testGuard is a guard with a fake clock (synctest).
type testGuard struct {
	*Guard
	suspended time.Duration // time suspended, which timers do not count
	begin     time.Time
}

func newTestGuard() *testGuard {
	h := &testGuard{begin: time.Now()}
	h.Guard = NewGuard(clock.RealClock{}, func() time.Duration { return time.Since(h.begin) + h.suspended })
	return h
}

func (h *testGuard) wantEnter(t *testing.T, want error) (context.Context, func()) {
	t.Helper()
	ctx, epoch, leave, err := h.Enter(t.Context())
	assert.Require(t, errors.Is(err, want) && (err == nil || epoch == 0), "Enter: got epoch %d and error %v, want %v", epoch, err, want)
	return ctx, leave
}

const testTerm = 14 * time.Second

func TestGuardOpensAndLapses(t *testing.T) { inBubble(t, checkGuardOpensAndLapses) }

func checkGuardOpensAndLapses(t *testing.T) {
	h := newTestGuard()
	h.wantEnter(t, ErrNotLeading)
	h.open(7, 0, testTerm)
	advance(testTerm - Spare)
	ctx, leave := h.wantEnter(t, nil)
	defer leave()
	advance(time.Millisecond)
	h.wantEnter(t, ErrLapsed) // less than 2 s are left
	for range 3 {
		advance(time.Second)
	}
	if !errors.Is(context.Cause(ctx), ErrLapsed) || !h.hasLapsed() {
		t.Errorf("the call's context says %v, lapsed is %v: want both to show it", context.Cause(ctx), h.hasLapsed())
	}
	refusals, _ := h.metricValues()
	assert.True(t, refusals == 2, "%d refusals were counted, want 2", refusals)
}

func TestGuardIsExtended(t *testing.T) { inBubble(t, checkGuardIsExtended) }

func checkGuardIsExtended(t *testing.T) {
	h := newTestGuard()
	h.open(7, 0, testTerm)
	ctx, leave := h.wantEnter(t, nil)
	defer leave()
	for n := range 30 {
		advance(time.Second)
		if n%5 == 0 {
			h.extend(time.Since(h.begin), testTerm)
		}
	}
	h.extend(time.Second, testTerm) // the answer to an old renewal shortens nothing
	if ctx.Err() != nil {
		t.Errorf("the call was cancelled: %v", context.Cause(ctx))
	}
	_, leave = h.wantEnter(t, nil)
	leave()
	assert.Equal(t, "the epoch", h.Epoch(), 7)
}

// TestGuardCountsSuspendedTime checks that the guard lapses during a suspension,
// although timers stop.
func TestGuardCountsSuspendedTime(t *testing.T) { inBubble(t, checkGuardCountsSuspendedTime) }

func checkGuardCountsSuspendedTime(t *testing.T) {
	h := newTestGuard()
	h.open(7, 0, testTerm)
	ctx, leave := h.wantEnter(t, nil)
	defer leave()
	h.suspended = time.Minute
	h.wantEnter(t, ErrLapsed)
	advance(checkPeriod)
	assert.True(t, ctx.Err() != nil, "the call goes on a second after the host woke up")
}

func TestGuardReleaseAndRevoke(t *testing.T) { inBubble(t, checkGuardReleaseAndRevoke) }

func checkGuardReleaseAndRevoke(t *testing.T) {
	h := newTestGuard()
	h.open(7, 0, testTerm)
	ctx, leave := h.wantEnter(t, nil)
	h.closeForRelease()
	h.wantEnter(t, ErrReleasing)
	assert.True(t, ctx.Err() == nil, "closing the guard for a release cancelled a call")
	assert.Equal(t, "calls in flight", h.InFlight(), 1)
	leave()
	assert.True(t, ctx.Err() != nil, "the call's context goes on after the call")
	assert.True(t, h.InFlight() == 0 && errors.Is(h.Check(), ErrReleasing), "%d calls in flight, check says %v", h.InFlight(), h.Check())

	h = newTestGuard()
	h.open(7, 0, testTerm)
	ctx, leave = h.wantEnter(t, nil)
	defer leave()
	h.revoke(ErrLost)
	if !errors.Is(context.Cause(ctx), ErrLost) {
		t.Errorf("the call's context says %v, want %v", context.Cause(ctx), ErrLost)
	}
	h.extend(time.Second, testTerm)
	h.wantEnter(t, ErrLost)
}

// TestGuardLapsesAtTheEndOfItsTerm checks the instant, for those who only report.
func TestGuardLapsesAtTheEndOfItsTerm(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newTestGuard()
		err := h.Check()
		assert.True(t, errors.Is(err, ErrNotLeading) && !h.hasLapsed(), "before it leads: check says %v, lapsed %v", err, h.hasLapsed())
		advance(3 * time.Second)
		h.open(7, 3*time.Second, testTerm)
		h.extend(time.Second, testTerm) // is older
		advance(testTerm - time.Nanosecond)
		err = h.Check()
		assert.True(t, err == nil && !h.hasLapsed(), "just before: check says %v, lapsed %v", err, h.hasLapsed())
		advance(time.Nanosecond)
		err = h.Check()
		assert.True(t, errors.Is(err, ErrLapsed) && h.hasLapsed(), "then: check says %v, lapsed %v", err, h.hasLapsed())
		_, since := h.metricValues()
		assert.True(t, since == testTerm, "renewed %s ago, want %s", since, testTerm)
	})
}

// TestGuardKeepsItsReason checks that a guard whose Lease was lost does not open again, and
// still says why it is closed.
func TestGuardKeepsItsReason(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h := newTestGuard()
		h.open(7, 0, testTerm)
		h.revoke(ErrLost)
		h.closeForRelease()
		h.open(8, 0, testTerm)
		h.wantEnter(t, ErrLost)
	})
}

// timerCounter is a clock that counts the timers that were started.
type timerCounter struct {
	clock.RealClock
	started atomic.Int32
}

func (c *timerCounter) AfterFunc(d time.Duration, f func()) clock.Timer {
	c.started.Add(1)
	return c.RealClock.AfterFunc(d, f)
}

// TestOneCheckForAllCalls checks that one timer runs for all calls, and none without a call.
func TestOneCheckForAllCalls(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		h, timers := newTestGuard(), &timerCounter{}
		h.clock = timers
		h.open(7, 0, testTerm)
		var leave [3]func()
		for n := range leave {
			_, leave[n] = h.wantEnter(t, nil)
		}
		for want := range int32(3) {
			n := timers.started.Load()
			assert.True(t, n == want+1, "after %s %d timers were started, want %d", time.Since(h.begin), n, want+1)
			advance(checkPeriod)
		}
		for n := range leave {
			leave[n]()
		}
		advance(3 * checkPeriod)
		n := timers.started.Load()
		assert.True(t, n == 4, "%d timers were started, want none without a call", n-4)
	})
}

func TestAlwaysOpen(t *testing.T) {
	t.Parallel()
	g := AlwaysOpen(5)
	ctx, epoch, leave, err := g.Enter(t.Context())
	assert.Require(t, err == nil && epoch == 5 && ctx.Err() == nil, "Enter: epoch %d, error %v; want 5 and none", epoch, err)
	leave()
	assert.True(t, !g.hasLapsed() && g.Check() == nil && g.Epoch() == 5, "lapsed %v, check says %v, epoch %d", g.hasLapsed(), g.Check(), g.Epoch())
	_, since := g.metricValues()
	assert.True(t, since == 0, "renewed %s ago, though nothing renews it", since)
}

func TestBootTime(t *testing.T) {
	t.Parallel()
	before := BootTime()
	after := BootTime()
	assert.True(t, before > 0 && after >= before, "the boot time went from %s to %s", before, after)
}
