// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package leader

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// hands is a guard with a fake clock (synctest).
type hands struct {
	*Guard
	slept time.Duration // time suspended, which timers do not count
	begin time.Time
}

func newHands() *hands {
	h := &hands{begin: time.Now()}
	h.Guard = NewGuard(clock.RealClock{}, func() time.Duration { return time.Since(h.begin) + h.slept })
	return h
}

func (h *hands) enter(t *testing.T, want error) (context.Context, func()) {
	t.Helper()
	ctx, _, leave, err := h.Enter(t.Context())
	if !errors.Is(err, want) {
		t.Fatalf("Enter: got error %v, want %v", err, want)
	}
	return ctx, leave
}

const term = 14 * time.Second

func TestGuardOpensAndLapses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, guardOpensAndLapses)
}

func guardOpensAndLapses(t *testing.T) {
	h := newHands()
	h.enter(t, ErrNotLeading)
	h.open(7, 0, term)
	pass(term - Spare)
	ctx, leave := h.enter(t, nil)
	defer leave()
	pass(time.Millisecond)
	h.enter(t, ErrLapsed) // less than 2 s are left
	for range 3 {
		pass(time.Second)
	}
	if !errors.Is(context.Cause(ctx), ErrLapsed) || !h.lapsed() {
		t.Errorf("the call's context says %v, lapsed is %v: want both to tell", context.Cause(ctx), h.lapsed())
	}
	if refusals, _ := h.state(); refusals != 2 {
		t.Errorf("%d refusals were counted, want 2", refusals)
	}
}

func TestGuardIsExtended(t *testing.T) {
	t.Parallel()
	synctest.Test(t, guardIsExtended)
}

func guardIsExtended(t *testing.T) {
	h := newHands()
	h.open(7, 0, term)
	ctx, leave := h.enter(t, nil)
	defer leave()
	for n := range 30 {
		pass(time.Second)
		if n%5 == 0 {
			h.extend(time.Since(h.begin), term)
		}
	}
	h.extend(time.Second, term) // the answer to an old renewal shortens nothing
	if ctx.Err() != nil {
		t.Errorf("the call was cut short: %v", context.Cause(ctx))
	}
	_, leave = h.enter(t, nil)
	leave()
	if h.Epoch() != 7 {
		t.Errorf("the epoch is %d, want 7", h.Epoch())
	}
}

// TestGuardCountsSuspendedTime checks that the guard lapses during a suspension,
// although timers stop.
func TestGuardCountsSuspendedTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, guardCountsSuspendedTime)
}

func guardCountsSuspendedTime(t *testing.T) {
	h := newHands()
	h.open(7, 0, term)
	ctx, leave := h.enter(t, nil)
	defer leave()
	h.slept = time.Minute
	h.enter(t, ErrLapsed)
	pass(lookAgain)
	if ctx.Err() == nil {
		t.Error("the call goes on a second after the host woke up")
	}
}

func TestGuardShutAndRevoke(t *testing.T) {
	t.Parallel()
	synctest.Test(t, guardShutAndRevoke)
}

func guardShutAndRevoke(t *testing.T) {
	h := newHands()
	h.open(7, 0, term)
	ctx, leave := h.enter(t, nil)
	h.shut()
	h.enter(t, ErrShut)
	if ctx.Err() != nil {
		t.Error("shutting the guard cut a call short")
	}
	if h.InFlight() != 1 {
		t.Errorf("%d calls in flight, want 1", h.InFlight())
	}
	leave()
	if h.InFlight() != 0 || !errors.Is(h.Check(), ErrShut) {
		t.Errorf("%d calls in flight, check says %v", h.InFlight(), h.Check())
	}

	h = newHands()
	h.open(7, 0, term)
	ctx, leave = h.enter(t, nil)
	defer leave()
	h.revoke(ErrLost)
	if !errors.Is(context.Cause(ctx), ErrLost) {
		t.Errorf("the call's context says %v, want %v", context.Cause(ctx), ErrLost)
	}
	h.extend(time.Second, term)
	h.enter(t, ErrLost)
}

func TestAlways(t *testing.T) {
	t.Parallel()
	g := Always(5)
	ctx, epoch, leave, err := g.Enter(t.Context())
	if err != nil || epoch != 5 || ctx.Err() != nil {
		t.Fatalf("Enter: epoch %d, error %v; want 5 and none", epoch, err)
	}
	leave()
	if g.lapsed() {
		t.Error("it lapsed")
	}
}

func TestBootTime(t *testing.T) {
	t.Parallel()
	before := BootTime()
	if after := BootTime(); before <= 0 || after < before {
		t.Errorf("the boot time went from %s to %s", before, after)
	}
}
