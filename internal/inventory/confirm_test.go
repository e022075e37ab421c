// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// exchange replaces the engine with one that has no servers.
func (g *rig) exchange(id string) {
	g.engine.set(func() {
		g.engine.engineID = func(string) string { return id }
		g.engine.list = func(context.Context, func() ([]driver.Server, error)) ([]driver.Server, error) { return nil, nil }
	})
}

// TestAnExchangeAfterAnOutage checks that the new engine is reported like a first
// list, without the outage of the previous engine.
func TestAnExchangeAfterAnOutage(t *testing.T) {
	g := listed(t)
	g.ensure()
	g.clock.Step(time.Minute)
	g.memory.SetAvailable(false)
	g.wantSoon("a", Unknown)
	g.memory.SetAvailable(true)
	g.eventually("it is back", func() bool { g.clock.Step(retryPeriod); return g.inv.Get("a").Answer == Present })
	g.told()
	// The loop must find the exchange by itself, in a complete list.
	between := make(chan Observation, 1)
	g.exchange("another")
	g.engine.set(func() {
		g.engine.list = func(context.Context, func() ([]driver.Server, error)) ([]driver.Server, error) {
			select {
			case between <- g.inv.Get("a"):
			default:
			}
			return nil, nil
		}
	})
	g.eventually("the other engine is listed", func() bool {
		g.clock.Step(g.inv.ListPeriod)
		return g.inv.Get("a").Answer == Gone && g.inv.Get("a").EngineID == "another"
	})
	if seen := <-between; seen.Answer != Unknown || seen.EngineID != "another" || !seen.DownSince.IsZero() || !errors.Is(seen.Cause, errNotListed) {
		t.Errorf("while the other engine was listed the answer was %+v, want unknown without the outage of the first", seen)
	}
	g.eventually("it is told", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.changes) >= 2
	})
	if told := g.told(); len(told) != 2 || !told[0].All || !told[1].All {
		t.Errorf("told %+v, want when it was met and when it was listed that all is to be looked at", told)
	}
}

// TestAStreamThatClosedHasACauseOfItsOwn checks that it does not keep the cause of
// an earlier outage.
func TestAStreamThatClosedHasACauseOfItsOwn(t *testing.T) {
	g := newRig(t)
	g.inv.markUnreachable(driver.Errorf(driver.ErrUnavailable, "the outage"))
	if err := g.inv.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.inv.markUnreachable(errWatchClosed)
	if seen := g.inv.Get("a"); !errors.Is(seen.Cause, errWatchClosed) {
		t.Errorf("got %+v, want the cause %v", seen, errWatchClosed)
	}
}

// TestACallersDeadlineIsItsOwn checks that the deadline fails one look and proves
// nothing about the engine.
func TestACallersDeadlineIsItsOwn(t *testing.T) {
	g := newRig(t) // without a loop, which would look when asked to
	if err := g.inv.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.ensure()
	g.told()
	ctx, cancel := context.WithCancel(t.Context())
	g.engine.set(func() {
		g.engine.askID = func(ctx context.Context) error {
			cancel()
			return ctx.Err()
		}
	})
	seen, err := g.inv.Look(ctx, "a")
	if !errors.Is(err, context.Canceled) || seen.Answer != Unknown {
		t.Errorf("the look says %+v, error %v; want unknown and the caller's end", seen, err)
	}
	if len(g.inv.suspect) != 0 {
		t.Error("the loop was asked to look at the engine")
	}
	if seen := g.inv.Get("a"); seen.Answer != Present || !seen.BackSince.IsZero() || seen.Cause != nil {
		t.Errorf("afterwards the answer is %+v, want as before", seen)
	}
	if told := g.told(); len(told) != 0 {
		t.Errorf("told %+v, want nothing", told)
	}
}

// TestTheLoopDecidesWhetherTheEngineIsLost checks that a failed query for the id
// fails only the look, while the engine answers the loop.
func TestTheLoopDecidesWhetherTheEngineIsLost(t *testing.T) {
	g := listed(t)
	g.ensure()
	g.told()
	lists := hook(g.engine, &g.engine.lists)
	failed := false
	g.engine.set(func() {
		g.engine.askID = func(context.Context) error {
			if failed {
				return nil
			}
			failed = true
			return driver.Errorf(driver.ErrUnavailable, "too busy")
		}
	})
	seen, err := g.inv.Look(t.Context(), "a")
	if !errors.Is(err, driver.ErrUnavailable) || seen.Answer != Unknown || !errors.Is(seen.Cause, driver.ErrUnavailable) || !seen.DownSince.Equal(t0) {
		t.Errorf("the look says %+v, error %v", seen, err)
	}
	g.eventually("the loop lists the engine", func() bool { return hook(g.engine, &g.engine.lists) >= lists+2 })
	if seen := g.inv.Get("a"); seen.Answer != Present || !seen.BackSince.IsZero() {
		t.Errorf("afterwards the answer is %+v, want present and no outage", seen)
	}
	if told := g.told(); len(told) != 0 {
		t.Errorf("told %+v, want nothing", told)
	}
}

// TestAnUnconfirmedAnswerIsNotKept covers the answer of an engine with another id,
// and an answer that was requested before the engine was exchanged.
func TestAnUnconfirmedAnswerIsNotKept(t *testing.T) {
	g := newRig(t)
	if err := g.inv.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.ensure()
	g.exchange("another")
	seen, err := g.inv.Look(t.Context(), "a")
	if kept := g.inv.entries["a"]; err == nil || seen.Answer != Unknown || kept == nil || len(kept.servers) != 1 {
		t.Errorf("the look says %+v, error %v, and the cache has %+v; want what was there", seen, err, kept)
	}
	late, err := g.inv.ask(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	late.found = map[types.UID][]driver.Server{"b": {{UID: "b", ID: "1"}}}
	if err := g.inv.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := g.inv.take(late); !errors.Is(err, errExchanged) || g.inv.Get("b").Answer != Gone {
		t.Errorf("an answer of the engine before: error %v, and the cache says %+v", err, g.inv.Get("b"))
	}
}

// TestAnActionOfTheEngineBefore checks that it leaves nothing in the cache of the
// next engine.
func TestAnActionOfTheEngineBefore(t *testing.T) {
	g := newRig(t)
	if err := g.inv.complete(t.Context()); err != nil {
		t.Fatal(err)
	}
	g.engine.set(func() {
		g.engine.ensure = func(do func() (driver.Server, error)) (driver.Server, error) {
			g.exchange("another")
			if err := g.inv.complete(t.Context()); err != nil {
				t.Error(err)
			}
			return do()
		}
	})
	g.ensure()
	if seen := g.inv.Get("a"); seen.Answer != Gone || seen.EngineID != "another" {
		t.Errorf("the answer is %+v, want that the other engine has none", seen)
	}
}

// TestAsManyListsForManyServers checks that the number of calls to an idle engine
// does not depend on how many servers it has.
func TestAsManyListsForManyServers(t *testing.T) {
	few, many := callsAtRest(t, 3), callsAtRest(t, 600)
	if few != many || few == 0 {
		t.Errorf("%d lists and samples with 3 servers and %d with 600, want as many", few, many)
	}
}

// callsAtRest counts the lists and samples in ten minutes.
func callsAtRest(t *testing.T, servers int) int {
	t.Helper()
	g := newRig(t)
	for n := range servers {
		g.add(types.UID(fmt.Sprintf("uid-%d", n)))
	}
	g.start()
	g.wantSoon("uid-0", Present)
	lists := func() (n int) { g.engine.set(func() { n = g.engine.lists }); return n }
	usages := func() (n int) { g.engine.set(func() { n = g.engine.usages }); return n }
	g.eventually("both periods run", func() bool { return g.clock.Waiters() >= 2 })
	before := lists() + usages()
	for n := range 20 {
		wantLists, wantUsages := lists()+1, usages()+1
		g.clock.Step(g.inv.ListPeriod)
		g.eventually(fmt.Sprintf("period %d is over", n), func() bool { return lists() >= wantLists && usages() >= wantUsages })
	}
	return lists() + usages() - before
}

func TestRestAfter(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 999 * time.Microsecond: 0, time.Millisecond: 3 * time.Millisecond,
		20 * time.Millisecond: 60 * time.Millisecond, time.Second: maxRest,
	} {
		if got := restAfter(took); got != want {
			t.Errorf("after %s: rest %s, want %s", took, got, want)
		}
	}
}
