// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// replaceEngine replaces the engine with an empty one.
func (g *fixture) replaceEngine(id string) {
	g.engine.withLock(func() {
		g.engine.engineID = func(string) string { return id }
		g.engine.list = func(context.Context, doList) ([]driver.Server, error) { return nil, nil }
	})
}

// TestEngineReplacedAfterOutage checks that the new engine is reported like a first
// list, without the outage of the previous engine.
func TestEngineReplacedAfterOutage(t *testing.T) {
	g := newListedFixture(t)
	g.ensureServer()
	g.clock.Step(time.Minute)
	g.memory.SetAvailable(false)
	g.waitForAnswer("a", Unknown)
	g.waitForChanges(1)
	g.memory.SetAvailable(true)
	g.waitUntil("it is back", func() bool { g.clock.Step(retryPeriod); return g.inv.Get("a").Answer == Present })
	g.waitForChanges(2)
	g.takeChanges()
	// The loop must find the other engine by itself, in a complete list.
	between := make(chan Observation, 1)
	g.replaceEngine("another")
	g.engine.onList(func(context.Context, doList) ([]driver.Server, error) {
		select {
		case between <- g.inv.Get("a"):
		default:
		}
		return nil, nil
	})
	g.waitUntil("the other engine is listed", func() bool {
		g.clock.Step(g.inv.ListPeriod)
		return g.inv.Get("a").Answer == Gone && g.inv.Get("a").EngineID == "another"
	})
	if seen := <-between; seen.Answer != Unknown || seen.EngineID != "another" || !seen.DownSince.IsZero() || !errors.Is(seen.Cause, errNotListed) {
		t.Errorf("while the other engine was listed the answer was %+v, want unknown without the outage of the first", seen)
	}
	g.waitForChanges(2)
	if reported := g.takeChanges(); len(reported) != 2 || !reported[0].All || !reported[1].All {
		t.Errorf("reported %+v, want one Change of all when it was found and one when it was listed", reported)
	}
}

// TestClosedWatchHasOwnCause checks that it does not keep the cause of
// an earlier outage.
func TestClosedWatchHasOwnCause(t *testing.T) {
	g := newFixture(t)
	g.inv.markUnreachable(driver.Errorf(driver.ErrUnavailable, "the outage"))
	g.listEngine()
	g.inv.markUnreachable(errWatchClosed)
	seen := g.inv.Get("a")
	assert.True(t, errors.Is(seen.Cause, errWatchClosed), "got %+v, want the cause %v", seen, errWatchClosed)
}

// TestCallerDeadlineIsNoOutage checks that the deadline fails one live read and proves
// nothing about the engine.
func TestCallerDeadlineIsNoOutage(t *testing.T) {
	g := newFixture(t) // without a loop, which would check the engine on the signal
	g.listEngine()
	g.ensureServer()
	g.takeChanges()
	ctx, cancel := context.WithCancel(t.Context())
	g.engine.withLock(func() {
		g.engine.beforeEngineID = func(ctx context.Context) error {
			cancel()
			return ctx.Err()
		}
	})
	seen, err := g.inv.GetLive(ctx, "a")
	assert.True(t, errors.Is(err, context.Canceled) && seen.Answer == Unknown, "GetLive returned %+v, error %v; want unknown and the caller's end", seen, err)
	assert.True(t, len(g.inv.cache.checkDue) == 0, "the loop was signalled to check the engine")
	seen = g.inv.Get("a")
	assert.True(t, seen.Answer == Present && seen.BackSince.IsZero() && seen.Cause == nil, "afterwards the answer is %+v, want as before", seen)
	reported := g.takeChanges()
	assert.True(t, len(reported) == 0, "reported %+v, want nothing", reported)
}

// TestFailedLiveReadIsNoOutage checks that a failed query for the id
// fails only the live read, while the engine answers the loop.
func TestFailedLiveReadIsNoOutage(t *testing.T) {
	g := newListedFixture(t)
	g.ensureServer()
	g.takeChanges()
	lists := g.engine.countLists()
	failed := false
	g.engine.withLock(func() {
		g.engine.beforeEngineID = func(context.Context) error {
			if failed {
				return nil
			}
			failed = true
			return driver.Errorf(driver.ErrUnavailable, "too busy")
		}
	})
	seen, err := g.inv.GetLive(t.Context(), "a")
	assert.True(t, errors.Is(err, driver.ErrUnavailable) && seen.Answer == Unknown && errors.Is(seen.Cause, driver.ErrUnavailable) && seen.DownSince.Equal(t0),
		"GetLive returned %+v, error %v", seen, err)
	g.waitUntil("the loop lists the engine", func() bool { return g.engine.countLists() >= lists+2 })
	seen = g.inv.Get("a")
	assert.True(t, seen.Answer == Present && seen.BackSince.IsZero(), "afterwards the answer is %+v, want present and no outage", seen)
	reported := g.takeChanges()
	assert.True(t, len(reported) == 0, "reported %+v, want nothing", reported)
}

// TestUnconfirmedAnswerIsDiscarded covers the answer of an engine with another id,
// and an answer that was requested before the engine was replaced.
func TestUnconfirmedAnswerIsDiscarded(t *testing.T) {
	g := newFixture(t).listEngine()
	g.ensureServer()
	first := g.inv.Get("a").EngineID
	g.replaceEngine("another")
	seen, err := g.inv.GetLive(t.Context(), "a")
	assert.True(t, err != nil && strings.Contains(err.Error(), first) && strings.Contains(err.Error(), "another") && len(g.inv.cache.checkDue) != 0,
		"error %v, and %d checks are due; want one, and that the error names both engines", err, len(g.inv.cache.checkDue))
	if kept := g.inv.cache.entries["a"]; seen.Answer != Unknown || kept == nil || len(kept.servers) != 1 {
		t.Errorf("GetLive returned %+v, error %v, and the cache has %+v; want what was there", seen, err, kept)
	}
	now := g.inv.Get("a")
	assert.True(t, now.Answer == Unknown && now.DownSince.Equal(t0) && now.Cause != nil, "afterwards the answer is %+v, want unknown at once", now)
	late, err := g.inv.queryEngine(t.Context(), "b")
	assert.NoError(t, err)
	late.found = map[types.UID][]driver.Server{"b": {{UID: "b", ID: "1"}}}
	g.listEngine()
	if err := g.inv.cache.applyResult(late); !errors.Is(err, errReplaced) || g.inv.Get("b").Answer != Gone {
		t.Errorf("an answer of the engine before: error %v, and the cache says %+v", err, g.inv.Get("b"))
	}
}

// TestActionOfReplacedEngine checks that it leaves nothing in the cache of the
// next engine.
func TestActionOfReplacedEngine(t *testing.T) {
	g := newFixture(t).listEngine()
	g.engine.onEnsure(func(do doEnsure) (driver.Server, error) {
		g.replaceEngine("another")
		g.listEngine()
		return do()
	})
	assert.ErrorIs(t, "an action of the engine before", assert.ErrorOf(g.inv.Ensure(t.Context(), newSpec())), errReplaced)
	seen := g.inv.Get("a")
	assert.True(t, seen.Answer == Gone && seen.EngineID == "another", "the answer is %+v, want that the other engine has none", seen)
}

// TestCreationByAnotherEngine checks that a creation has not succeeded if another engine was in the
// engine's place, which the loop has yet to notice.
func TestCreationByAnotherEngine(t *testing.T) {
	g := newFixture(t).listEngine()
	g.engine.withLock(func() { g.engine.engineID = func(string) string { return "another" } })
	s, err := g.inv.Ensure(t.Context(), newSpec())
	assert.True(t, err != nil, "created %+v", s)
	seen := g.inv.Get("a")
	assert.True(t, seen.Answer == Unknown, "the answer is %+v, want unknown", seen)
	err = g.inv.listAll(t.Context())
	assert.True(t, err == nil && g.inv.Get("a").EngineID == "another", "error %v, and the inventory has %+v", err, g.inv.Get("a"))
}

// TestOnlyCreationsAreConfirmed checks that the engine's id is not read after a change of the server
// that the target names.
func TestOnlyCreationsAreConfirmed(t *testing.T) {
	g := newFixture(t).listEngine()
	s := g.ensureServer()
	g.engine.withLock(func() { g.engine.beforeEngineID = func(context.Context) error { return errors.New("too busy") } })
	spec := newSpec()
	spec.ID, spec.Power = s.ID, driver.PowerOff
	assert.ReportError(t, assert.ErrorOf(g.inv.Ensure(t.Context(), spec)))
	seen := g.inv.Get("a")
	assert.True(t, seen.Answer == Present && seen.Server.State != s.State, "the answer is %+v", seen)
}

// TestAnswersBeforeAnEpochAreOld checks that what was observed before this process led is old until the
// engine has answered again.
func TestAnswersBeforeAnEpochAreOld(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(*fixture)
		want string // the UIDs about which the answer is old
	}{
		"nothing":                      {func(*fixture) {}, "a b none"},
		"the same epoch, after a list": {func(g *fixture) { g.listEngine().inv.BeginEpoch(7) }, ""},
		"another epoch, after a list":  {func(g *fixture) { g.listEngine().inv.BeginEpoch(8) }, "a b none"},
		"a query for one":              {func(g *fixture) { _, _ = g.inv.GetLive(g.t.Context(), "a") }, "b none"},
		"an action":                    {func(g *fixture) { g.ensureServer() }, "b none"},
		"a list during an action that fails": {
			func(g *fixture) {
				g.engine.onEnsure(func(doEnsure) (driver.Server, error) {
					g.listEngine()
					return driver.Server{}, errors.New("boom")
				})
				_, _ = g.inv.Ensure(g.t.Context(), newSpec())
			}, "a",
		},
		"an action that fails": {
			func(g *fixture) {
				g.memory.SetAvailable(false)
				_, _ = g.inv.Ensure(g.t.Context(), newSpec())
			}, "a b none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFixture(t)
			g.addServer("a")
			g.addServer("b")
			g.listEngine().inv.BeginEpoch(7)
			assert.True(t, len(g.inv.cache.checkDue) != 0, "the loop was not signalled to list the engine")
			tc.then(g)
			for _, uid := range []types.UID{"a", "b", "none"} {
				got, want := g.inv.IsOld(uid), strings.Contains(tc.want, string(uid))
				assert.True(t, got == want, "the answer about %q is old: %v, want %v", uid, got, want)
			}
		})
	}
}

// TestAsManyListsForManyServers checks that the number of calls to an idle engine
// does not depend on how many servers it has.
func TestAsManyListsForManyServers(t *testing.T) {
	few, many := countCallsAtRest(t, 3), countCallsAtRest(t, 600)
	assert.True(t, few == many && few != 0, "%d lists and samples with 3 servers and %d with 600, want as many", few, many)
}

// countCallsAtRest counts the lists and samples in ten minutes.
func countCallsAtRest(t *testing.T, servers int) int {
	t.Helper()
	g := newFixture(t)
	for n := range servers {
		g.addServer(types.UID(fmt.Sprintf("uid-%d", n)))
	}
	g.startLoop()
	g.waitForAnswer("uid-0", Present)
	lists, usages := g.engine.countLists, func() int { return readLocked(g.engine, &g.engine.usages) }
	g.waitUntil("both periods run", func() bool { return g.clock.Waiters() >= 2 })
	before := lists() + usages()
	for n := range 20 {
		wantLists, wantUsages := lists()+1, usages()+1
		g.clock.Step(g.inv.ListPeriod)
		g.waitUntil(fmt.Sprintf("period %d is over", n), func() bool { return lists() >= wantLists && usages() >= wantUsages })
	}
	return lists() + usages() - before
}

func TestPauseAfterRefresh(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		0: 0, 999 * time.Microsecond: 0, time.Millisecond: 3 * time.Millisecond,
		20 * time.Millisecond: 60 * time.Millisecond, time.Second: maxRefreshPause,
	} {
		assert.Equal(t, fmt.Sprintf("after %s: pause", took), pauseAfterRefresh(took), want)
	}
}

// TestFailedLiveReadKeepsTheRest checks that a live read that fails makes only the answer
// unknown.
func TestFailedLiveReadKeepsTheRest(t *testing.T) {
	g := newFixture(t)
	g.inv.markUnreachable(driver.Errorf(driver.ErrUnavailable, "the outage"))
	g.listEngine()
	g.engine.failEnsure(context.DeadlineExceeded)
	g.engine.failList(errors.New("too busy"))
	_, _ = g.inv.Ensure(t.Context(), newSpec())
	g.clock.Step(time.Second)
	seen, err := g.inv.GetLive(t.Context(), "a")
	want := Observation{EngineID: g.inv.Get("a").EngineID, BackSince: t0, SettlesAt: t0.Add(settlePeriod), DownSince: g.clock.Now(), Cause: err}
	assert.True(t, err != nil && want.EngineID != "" && reflect.DeepEqual(seen, want), "got  %+v\nwant %+v", seen, want)
}

// TestLiveReadBeforeTheFirstList checks that it proves nothing, since the engine is not known.
func TestLiveReadBeforeTheFirstList(t *testing.T) {
	g := newFixture(t)
	seen, err := g.inv.GetLive(t.Context(), "a")
	assert.True(t, errors.Is(err, errNotListed) && seen.Answer == Unknown, "GetLive returned %+v, error %v", seen, err)
}
