// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
)

func TestNewRequiresEngineID(t *testing.T) {
	var noIdentifier struct{ driver.Driver }
	assert.ErrorSays(t, "a driver without an engine ID", assert.ErrorOf(New(Options{Name: "x", Driver: noIdentifier})), "driver x")
}

func TestDefaults(t *testing.T) {
	g := newFixture(t)
	for name, period := range map[string]time.Duration{"list": g.inv.ListPeriod, "usage": g.inv.UsagePeriod, "call": g.inv.CallTimeout} {
		assert.Equal(t, name+", want 30 s", period, 30*time.Second)
	}
	if leads, err := g.inv.ConfirmLeading(t.Context()); !leads || err != nil {
		t.Errorf("without an election it leads: %v, %v", leads, err)
	}
	confirm := func(context.Context) (bool, error) { return false, nil }
	set, err := New(Options{Name: "x", Driver: g.engine, Clock: g.clock, ListPeriod: 1, UsagePeriod: 2, CallTimeout: 3, ConfirmLeading: confirm})
	assert.NoError(t, err)
	leads, _ := set.ConfirmLeading(t.Context())
	assert.True(t, !leads && set.ListPeriod == 1 && set.UsagePeriod == 2 && set.CallTimeout == 3, "got %+v, want what was set", set.Options)
}

// TestSignalsWait checks that a signal waits for its reader, and that several signals become one.
func TestSignalsWait(t *testing.T) {
	inv := newFixture(t).inv
	for name, signal := range map[string]chan struct{}{"fenced": inv.fenced, "replaced": inv.cache.replaced, "refresh": inv.cache.refreshDue, "check": inv.cache.checkDue} {
		sendSignal(signal)
		sendSignal(signal)
		assert.True(t, len(signal) == 1, "%s: %d signals wait, want one", name, len(signal))
	}
}

// TestFirstTry checks that the first try ends with a list, and with a failure.
func TestFirstTry(t *testing.T) {
	for name, isAvailable := range map[string]bool{"listed": true, "failed": false} {
		t.Run(name, func(t *testing.T) {
			g := newFixture(t)
			g.memory.SetAvailable(isAvailable)
			select {
			case <-g.inv.Tried:
				t.Error("the engine was tried before the start")
			default:
			}
			g.startLoop()
			<-g.inv.Tried
			assert.Equal(t, "the engine is known", g.inv.Get("a").Answer == Gone, isAvailable)
		})
	}
}

func TestUnknownUntilListed(t *testing.T) {
	g := newFixture(t)
	g.memory.SetAvailable(false)
	seen := g.inv.Get("a")
	assert.True(t, seen.Answer == Unknown && seen.DownSince.IsZero() && seen.Cause != nil && seen.EngineID == "", "before it was started: %+v", seen)
	g.startLoop()
	g.waitUntil("it has queried the engine", func() bool {
		cause := g.inv.Get("a").Cause
		return cause != nil && errors.Is(cause, driver.ErrUnavailable)
	})
	g.waitUntil("it waits", g.clock.HasWaiters)
	seen = g.inv.Get("a")
	assert.True(t, seen.Answer == Unknown && seen.DownSince.Equal(t0), "with the engine unreachable: %+v", seen)
	g.memory.SetAvailable(true)
	g.waitUntil("it is listed", func() bool {
		g.clock.Step(retryPeriod)
		return g.inv.Get("a").Answer == Gone
	})
	seen = g.inv.Get("a")
	assert.True(t, seen.EngineID != "" && seen.Cause == nil && seen.DownSince.IsZero(), "after the list: %+v", seen)
	g.waitForChanges(2)
	reported := g.takeChanges()
	assert.True(t, len(reported) == 2 && reported[0].All && reported[1].All, "reported %+v, want one Change of all for the outage and one for the return", reported)
}

// TestFirstListIsReportedOnce checks that the servers of the first list are reported
// together, since none of them has changed.
func TestFirstListIsReportedOnce(t *testing.T) {
	g := newFixture(t)
	g.addServer("a")
	g.addServer("b")
	g.startLoop()
	g.waitForAnswer("b", Present)
	g.waitForChanges(1)
	reported := g.takeChanges()
	assert.True(t, len(reported) == 1 && reported[0].All, "reported %+v, want one Change of all", reported)
	g.editServer("a", func(r *fake.Record) { r.State = driver.StateStopped })
	g.waitUntil("a change is reported", func() bool {
		reported := g.takeChanges()
		return len(reported) == 1 && reported[0].UID == "a"
	})
}

// TestIncompleteListIsIgnored checks that nothing is known until a list is complete,
// with the same engine before and after it.
func TestIncompleteListIsIgnored(t *testing.T) {
	for name, change := range map[string]func(*hookedDriver){
		"the list fails": func(m *hookedDriver) {
			m.list = func(context.Context, doList) ([]driver.Server, error) {
				return nil, errors.New("half of it")
			}
		},
		"the engine is replaced meanwhile": func(m *hookedDriver) {
			reads := 0
			m.engineID = func(id string) string {
				reads++
				return id + strings.Repeat("x", reads%2)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFixture(t)
			g.engine.withLock(func() { change(g.engine) })
			g.startLoop()
			g.waitUntil("it was tried three times", func() bool {
				g.clock.Step(retryPeriod)
				return g.engine.countLists() >= 3
			})
			seen := g.inv.Get("a")
			assert.True(t, seen.Answer == Unknown, "it answers %+v", seen)
			g.engine.withLock(func() { g.engine.list, g.engine.engineID = nil, nil })
			g.waitUntil("it is listed", func() bool {
				g.clock.Step(retryPeriod)
				return g.inv.Get("a").Answer == Gone
			})
		})
	}
}

func TestHangingListTimesOut(t *testing.T) {
	g := newFixture(t)
	g.inv.CallTimeout = 20 * time.Millisecond
	g.engine.onList(func(ctx context.Context, _ doList) ([]driver.Server, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	g.startLoop()
	g.waitUntil("it gave up", func() bool { return errors.Is(g.inv.Get("a").Cause, context.DeadlineExceeded) })
}

func TestFollowsTheEngine(t *testing.T) {
	g := newListedFixture(t)
	g.takeChanges()
	g.addServer("a")
	g.waitForAnswer("a", Present)
	s := g.inv.Get("a").Server
	assert.True(t, s.Name == "vm-a" && s.State == driver.StateRunning, "server %+v", s)
	g.editServer("a", func(r *fake.Record) { r.State = driver.StatePaused })
	g.waitUntil("it is paused", func() bool { return g.inv.Get("a").Server.State == driver.StatePaused })
	g.memory.Remove("a")
	g.waitForAnswer("a", Gone)

	g.waitUntil("three changes are reported", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.changes) == 3 })
	want := Change{UID: "a", VM: types.NamespacedName{Namespace: "default", Name: "vm-a"}}
	for _, c := range g.takeChanges() {
		assert.Equal(t, "reported", c, want)
	}
	g.waitUntil("nothing is kept of it", func() bool {
		g.inv.cache.mu.Lock()
		defer g.inv.cache.mu.Unlock()
		return len(g.inv.cache.entries) == 0
	})
}

// TestChangeNamesLastKnownVM covers a server that breaks, and a server of which
// nothing was ever known.
func TestChangeNamesLastKnownVM(t *testing.T) {
	g := newListedFixture(t)
	g.addServer("a")
	g.waitForAnswer("a", Present)
	g.takeChanges()
	g.engine.editList(func(s *driver.Server) { *s = driver.Server{UID: s.UID, State: s.State, Err: errors.New("broken")} })
	g.editServer("a", func(r *fake.Record) { r.State = driver.StatePaused })
	g.addServer("b")
	for _, want := range []Change{{UID: "a", VM: types.NamespacedName{Namespace: "default", Name: "vm-a"}}, {UID: "b"}} {
		g.waitUntil("it is reported", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return slices.Contains(g.changes, want) })
	}
}

// TestOwnActionsAreNotReported checks that their result is in the cache at once and not
// reported.
func TestOwnActionsAreNotReported(t *testing.T) {
	g := newListedFixture(t)
	g.takeChanges()
	s := g.ensureServer()
	seen := g.inv.Get("a")
	assert.True(t, seen.Answer == Present && seen.Server.ID == s.ID, "after Ensure: %+v", seen)
	g.addServer("b") // comes after all that Ensure caused
	g.waitForAnswer("b", Present)
	for _, c := range g.takeChanges() {
		assert.True(t, c.UID == "b", "reported %+v", c)
	}
}

// TestListSkipsActionsSinceItBegan checks that a list does not change servers on which
// an action began after the list did: its answer may be older.
func TestListSkipsActionsSinceItBegan(t *testing.T) {
	for name, tc := range map[string]struct {
		before, during func(*fixture)
		want           Answer
	}{
		"created meanwhile": {
			before: func(*fixture) {}, during: func(g *fixture) { g.ensureServer() }, want: Present,
		},
		"created before": {
			before: func(g *fixture) { g.addServer("a") }, during: func(*fixture) {}, want: Present,
		},
		"removed by hand before": {
			before: func(g *fixture) { g.listEngine().ensureServer(); g.memory.Remove("a") }, during: func(*fixture) {}, want: Gone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFixture(t)
			tc.before(g)
			g.engine.onList(func(_ context.Context, do doList) ([]driver.Server, error) {
				servers, err := do()
				tc.during(g)
				return servers, err
			})
			g.listEngine()
			assert.Equal(t, "answer", g.inv.Get("a").Answer, tc.want)
		})
	}
}

// TestListBegunDuringActionIsIgnored is about a list that begins during an action and ends after it.
func TestListBegunDuringActionIsIgnored(t *testing.T) {
	g := newFixture(t).listEngine()
	var list listResult
	g.engine.onEnsure(func(do doEnsure) (driver.Server, error) {
		var err error
		if list, err = g.inv.queryEngine(t.Context()); err != nil {
			t.Error(err)
		}
		return do()
	})
	g.ensureServer()
	assert.NoError(t, g.inv.cache.applyResult(list))
	g.inv.markReachable()
	assert.Equal(t, "answer, want what the action has made", g.inv.Get("a").Answer, Present)
}

// TestListBegunDuringDeletionIsIgnored is about a deletion, whose outcome is read live: a list that begins
// during the deletion reports nothing.
func TestListBegunDuringDeletionIsIgnored(t *testing.T) {
	g := newFixture(t).listEngine()
	g.ensureServer()
	var list listResult
	g.engine.onDelete(func(_ driver.Target, do func() error) error {
		err := do()
		var listErr error
		if list, listErr = g.inv.queryEngine(t.Context()); listErr != nil {
			t.Error(listErr)
		}
		return err
	})
	assert.NoError(t, g.inv.Delete(t.Context(), newSpec().Target, false))
	g.takeChanges()
	assert.NoError(t, g.inv.cache.applyResult(list))
	changes := g.takeChanges()
	assert.True(t, len(changes) == 0, "a list that began before the end of a deletion reports %+v", changes)
}

// TestOlderListIsIgnored checks that a list that was overtaken changes nothing.
func TestOlderListIsIgnored(t *testing.T) {
	g := newFixture(t)
	older, err := g.inv.queryEngine(t.Context())
	assert.NoError(t, err)
	g.addServer("a")
	g.listEngine()
	older.uids = []types.UID{"a"}
	assert.NoError(t, g.inv.cache.applyResult(older))
	assert.Equal(t, "answer, want that of the newer list", g.inv.Get("a").Answer, Present)
}

// TestQueryLeavesNothing checks that all calls of a query end with it.
func TestQueryLeavesNothing(t *testing.T) {
	g := newFixture(t)
	var queryErr, idErr func() error // of their contexts
	g.engine.withLock(func() {
		g.engine.list = func(ctx context.Context, do doList) ([]driver.Server, error) {
			queryErr = ctx.Err
			return do()
		}
		g.engine.beforeEngineID = func(ctx context.Context) error { idErr = ctx.Err; return nil }
	})
	g.listEngine()
	assert.True(t, queryErr() != nil && idErr() != nil, "the context of a query goes on after it")
}

// TestListDuringActionIsIgnored is about a list that begins and ends during an
// action.
func TestListDuringActionIsIgnored(t *testing.T) {
	g := newFixture(t).listEngine()
	s := g.ensureServer()
	g.engine.onEnsure(func(do doEnsure) (driver.Server, error) {
		g.memory.Remove("a")
		g.listEngine()
		seen := g.inv.Get("a")
		assert.True(t, seen.Server.ID == s.ID, "during the action the inventory has %+v", seen)
		return do()
	})
	again := g.ensureServer()
	assert.True(t, g.inv.Get("a").Server.ID == again.ID, "the inventory has %+v", g.inv.Get("a"))
}

// TestEventDuringActionTriggersRefresh checks that an event during an action triggers a
// refresh: it may be about a change after the action's result.
func TestEventDuringActionTriggersRefresh(t *testing.T) {
	g := newListedFixture(t)
	g.ensureServer()
	marked := func() bool {
		g.inv.cache.mu.Lock()
		defer g.inv.cache.mu.Unlock()
		return g.inv.cache.entries["a"].changed
	}
	g.engine.onEnsure(func(do doEnsure) (driver.Server, error) {
		s, err := do()
		g.editServer("a", func(r *fake.Record) { r.State = driver.StatePaused })
		g.waitUntil("the event is there", marked)
		return s, err
	})
	g.ensureServer()
	g.waitUntil("it is refreshed", func() bool { return g.inv.Get("a").Server.State == driver.StatePaused })
}

func TestOutageAndReturn(t *testing.T) {
	g := newListedFixture(t)
	g.ensureServer()
	g.takeChanges()
	g.clock.Step(time.Minute)
	down := g.clock.Now()
	g.memory.SetAvailable(false)
	g.waitForAnswer("a", Unknown)
	seen := g.inv.Get("a")
	assert.True(t, seen.DownSince.Equal(down) && seen.Cause != nil && seen.BackSince.IsZero() && seen.EngineID != "", "during the outage: %+v", seen)
	g.waitUntil("the outage is reported", func() bool { return g.countChangesOfAll() >= 1 })
	g.memory.SetAvailable(true)
	// The clock may also overtake a call, which is one more outage that ends separately.
	g.waitUntil("it is back", func() bool {
		g.clock.Step(retryPeriod)
		seen = g.inv.Get("a")
		return seen.Answer == Present
	})
	assert.True(t, seen.BackSince.After(down), "after the outage: %+v", seen)
	g.waitUntil("the return is reported", func() bool { return g.countChangesOfAll() >= 2 })
}

// TestFailedRefreshIsNoOutage checks that all servers stay known while the engine fails to list one.
func TestFailedRefreshIsNoOutage(t *testing.T) {
	g := newListedFixture(t)
	g.addServer("a")
	g.waitForAnswer("a", Present)
	g.takeChanges()
	g.engine.withLock(func() { g.engine.failing = "a" })
	g.editServer("a", func(r *fake.Record) { r.State = driver.StatePaused })
	g.waitUntil("it is paused", func() bool { return g.inv.Get("a").Server.State == driver.StatePaused })
	g.addServer("b")
	g.waitUntil("the next refresh", func() bool { g.clock.Step(retryPeriod); return g.inv.Get("b").Answer == Present })
	n := g.countChangesOfAll()
	assert.True(t, n == 0, "%d times all was reported as changed", n)
}

// TestRefreshesAreMarked checks that the driver can tell a refresh, which proves nothing, from any other list.
func TestRefreshesAreMarked(t *testing.T) {
	t.Parallel()
	g := newListedFixture(t)
	var refreshes, others atomic.Int32
	g.engine.onList(func(ctx context.Context, do doList) ([]driver.Server, error) {
		if driver.IsRefresh(ctx) {
			refreshes.Add(1)
		} else {
			others.Add(1)
		}
		return do()
	})
	g.addServer("a")
	g.waitUntil("the event is followed by a refresh", func() bool { return refreshes.Load() > 0 })
	g.waitForAnswer("a", Present)
	before := others.Load()
	assert.NoError(t, assert.ErrorOf(g.inv.GetLive(t.Context(), "a")))
	assert.NoError(t, g.inv.listAll(t.Context()))
	if n := others.Load() - before; n < 2 { // the loop may have listed meanwhile
		t.Errorf("of a live look and a complete list, %d are not refreshes", n)
	}
}

// TestFailedRefreshBacksOff checks that a server that cannot be listed causes fewer and fewer complete lists,
// however often events name it, while others are listed as before.
func TestFailedRefreshBacksOff(t *testing.T) {
	g := newListedFixture(t)
	g.addServer("a")
	g.waitForAnswer("a", Present)
	g.engine.withLock(func() { g.engine.failing = "a" })
	began := g.clock.Now()
	for n := range 40 {
		g.editServer("a", func(r *fake.Record) { r.MemoryBytes = int64(n + 1) })
		g.clock.Step(retryPeriod)
		other := types.UID(fmt.Sprint("b", n))
		g.addServer(other)
		g.waitUntil("another one is refreshed", func() bool { g.clock.Step(maxRefreshPause); return g.inv.Get(other).Answer == Present })
	}
	took := g.clock.Since(began)
	failed, limit := readLocked(g.engine, &g.engine.failed), 1
	for wait := retryPeriod; wait <= took; wait *= 2 {
		limit++
	}
	assert.True(t, failed != 0 && failed <= limit, "in %s it was listed %d times, want at most %d", took, failed, limit)
	g.engine.withLock(func() { g.engine.failing = "" })
	g.editServer("a", func(r *fake.Record) { r.State = driver.StatePaused })
	g.waitUntil("it is paused", func() bool { g.clock.Step(retryPeriod); return g.inv.Get("a").Server.State == driver.StatePaused })
}

// TestFailedCallTriggersCheck checks that the engine is checked at once,
// not at the next period.
func TestFailedCallTriggersCheck(t *testing.T) {
	unavailable := driver.Errorf(driver.ErrUnavailable, "gone")
	for name, call := range map[string]func(*fixture) error{
		"Ensure": func(g *fixture) error {
			g.engine.failEnsure(unavailable)
			_, err := g.inv.Ensure(g.t.Context(), newSpec())
			return err
		},
		"Delete": func(g *fixture) error {
			g.engine.onDelete(func(driver.Target, func() error) error { return unavailable })
			return g.inv.Delete(g.t.Context(), driver.Target{UID: "a"}, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newListedFixture(t)
			g.engine.failList(unavailable)
			assert.ErrorIs(t, "the call", call(g), driver.ErrUnavailable)
			g.waitForAnswer("a", Unknown)
		})
	}
}

// TestGoneSettlesAfterAnAmbiguousCreation checks that "gone" is delayed after an
// ambiguous creation, and after no other failure.
func TestGoneSettlesAfterAnAmbiguousCreation(t *testing.T) {
	for name, tc := range map[string]struct {
		err     error
		existed bool
		want    time.Time
	}{
		"timeout":                   {context.DeadlineExceeded, false, t0.Add(settlePeriod)},
		"engine lost":               {driver.ErrUnavailable, false, t0.Add(settlePeriod)},
		"clear failure":             {driver.ErrRetry, false, time.Time{}},
		"timeout, but it was there": {context.DeadlineExceeded, true, time.Time{}},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFixture(t)
			g.listEngine()
			if tc.existed {
				g.ensureServer()
			}
			g.engine.failEnsure(tc.err)
			_, _ = g.inv.Ensure(t.Context(), newSpec())
			got := g.inv.Get("a").SettlesAt
			assert.True(t, got.Equal(tc.want), "settles at %v, want %v", got, tc.want)
			g.listEngine()
			got = g.inv.Get("a").SettlesAt
			assert.True(t, got.Equal(tc.want), "after a list it settles at %v, want %v", got, tc.want)
			g.engine.onEnsure(nil)
			g.ensureServer()
			got = g.inv.Get("a").SettlesAt
			assert.True(t, got.IsZero(), "after a success it settles at %v", got)
		})
	}
}

func TestDuplicatesAndReleasedServers(t *testing.T) {
	one, two := driver.Server{UID: "a", ID: "1"}, driver.Server{UID: "a", ID: "2"}
	released := driver.Server{UID: "a", ID: "3", Retained: true}
	for name, tc := range map[string]struct {
		servers    []driver.Server
		answer     Answer
		duplicates []string
	}{
		"one":              {[]driver.Server{one}, Present, nil},
		"two":              {[]driver.Server{one, two}, Present, []string{"1", "2"}},
		"one and released": {[]driver.Server{released, one}, Present, nil},
		"released alone":   {[]driver.Server{released}, Gone, nil},
		"another's":        {[]driver.Server{{UID: "b", ID: "4"}}, Gone, nil},
		"none":             {nil, Gone, nil},
	} {
		t.Run(name, func(t *testing.T) {
			g := newFixture(t)
			g.engine.onList(func(context.Context, doList) ([]driver.Server, error) {
				return tc.servers, nil
			})
			g.listEngine()
			if seen := g.inv.Get("a"); seen.Answer != tc.answer || !slices.Equal(seen.Duplicates, tc.duplicates) || (seen.Answer == Present && seen.Server.ID != "1") {
				t.Errorf("it answers %+v", seen)
			}
		})
	}
}

// TestEnsureOnlyFieldsAreNoChange checks that another error value of the same
// text does not count as a change either.
func TestEnsureOnlyFieldsAreNoChange(t *testing.T) {
	base := driver.Server{UID: "a", ID: "1", State: driver.StateRunning, Err: errors.New("stuck")}
	for name, tc := range map[string]struct {
		change func(*driver.Server)
		same   bool
	}{
		"pending":           {func(s *driver.Server) { s.Pending = []string{"image"} }, true},
		"refused":           {func(s *driver.Server) { s.Refused = &driver.Refused{Field: "image"} }, true},
		"error of one text": {func(s *driver.Server) { s.Err = fmt.Errorf("%w", errors.New("stuck")) }, true},
		"another error":     {func(s *driver.Server) { s.Err = errors.New("other") }, false},
		"no error":          {func(s *driver.Server) { s.Err = nil }, false},
		"state":             {func(s *driver.Server) { s.State = driver.StateStopped }, false},
		"addresses":         {func(s *driver.Server) { s.Addresses = []string{"10.0.0.1"} }, false},
		"ports":             {func(s *driver.Server) { s.Ports = []driver.Port{{Port: 80, HostPort: 8080}} }, false},
		"what it is doing":  {func(s *driver.Server) { s.Progress = "pulling" }, false},
	} {
		t.Run(name, func(t *testing.T) {
			next := base
			tc.change(&next)
			assert.Equal(t, "same", equalServers([]driver.Server{base}, []driver.Server{next}), tc.same)
		})
	}
}

// TestEnsureOnlyFieldsOfEither checks that it does not matter which of two servers has the fields
// that only Ensure reports, or which values they have.
func TestEnsureOnlyFieldsOfEither(t *testing.T) {
	listed := driver.Server{UID: "a", ID: "1", State: driver.StateRunning}
	for name, change := range map[string]func(s *driver.Server, field string){
		"pending": func(s *driver.Server, field string) { s.Pending = []string{field} },
		"refused": func(s *driver.Server, field string) { s.Refused = &driver.Refused{Field: field} },
		"both": func(s *driver.Server, field string) {
			s.Pending, s.Refused = []string{field}, &driver.Refused{Field: field}
		},
	} {
		ensured, another := listed, listed
		change(&ensured, "image")
		change(&another, "ports")
		assert.True(t, equalServer(&listed, &ensured) && equalServer(&ensured, &listed) && equalServer(&ensured, &another), "%s: they differ", name)
		ensured.State = driver.StatePaused
		assert.True(t, !equalServer(&listed, &ensured) && !equalServer(&ensured, &listed) && !equalServer(&ensured, &another),
			"%s: they are the same though their states differ", name)
	}
}

// TestListSettlesACreation checks that a server that a list finds ends the wait after a
// creation whose outcome was unknown.
func TestListSettlesACreation(t *testing.T) {
	g := newFixture(t)
	g.engine.onEnsure(func(do doEnsure) (driver.Server, error) {
		_, _ = do()
		return driver.Server{}, context.DeadlineExceeded
	})
	_, _ = g.inv.Ensure(t.Context(), newSpec())
	g.listEngine()
	seen := g.inv.Get("a")
	assert.True(t, seen.Answer == Present && seen.SettlesAt.IsZero(), "got %+v", seen)
}

// TestListOfAnotherRunForgetsRates checks that the rates of a run end with it, even if no
// event tells of its end.
func TestListOfAnotherRunForgetsRates(t *testing.T) {
	g := newFixture(t).listEngine()
	s := g.ensureServer()
	g.clock.Step(time.Second)
	g.inv.cache.recordUsage([]driver.Usage{{UID: "a", Run: s.Run, CPU: time.Second, At: g.clock.Now()}}, 2*g.inv.UsagePeriod)
	assert.Require(t, g.inv.cache.entries["a"].rates != nil, "no rates")
	g.editServer("a", func(r *fake.Record) { r.Run = "another" })
	g.listEngine()
	seen := g.inv.Get("a")
	assert.True(t, seen.Server.Run == "another" && seen.Rates == nil, "got %+v, with the rates %+v of the run before", seen, seen.Rates)
}

// TestPeriodicListFindsMissedChange checks that the periodic list finds a change
// without an event.
func TestPeriodicListFindsMissedChange(t *testing.T) {
	g := newFixture(t)
	silent := &silentDriver{hookedDriver: g.engine, events: make(chan types.UID)}
	inv, err := New(Options{Name: "silent", Driver: silent, Clock: g.clock, Log: logr.Discard()})
	assert.NoError(t, err)
	g.inv = inv
	g.startLoop()
	g.waitForAnswer("a", Gone)
	g.addServer("a")
	g.waitUntil("it waits", g.clock.HasWaiters)
	g.waitUntil("it is found", func() bool {
		g.clock.Step(30 * time.Second)
		return g.inv.Get("a").Answer == Present
	})
	close(silent.events)
	g.waitUntil("the stream is opened again", func() bool { return readLocked(g.engine, &silent.opened) >= 2 })
	g.waitForAnswer("a", Present)
}

// TestReturnAfterAClosedStreamIsReported checks that the return of an engine is reported if only its
// event stream had closed: a pass may have found the engine unreachable meanwhile.
func TestReturnAfterAClosedStreamIsReported(t *testing.T) {
	g := newFixture(t)
	silent := &silentDriver{hookedDriver: g.engine, events: make(chan types.UID)}
	g.inv.Driver = silent
	g.startLoop()
	isReported := func() bool {
		reported := g.takeChanges()
		return len(reported) == 1 && reported[0].All
	}
	g.waitUntil("the first list is reported", isReported)
	close(silent.events)
	g.waitForAnswer("a", Unknown)
	reported := g.takeChanges()
	assert.True(t, len(reported) == 0, "reported %+v, want nothing while the stream may be reopened", reported)
	g.waitUntil("the return is reported", func() bool { g.clock.Step(retryPeriod); return isReported() })
}

// silentDriver has a Watch that reports nothing and can be closed once.
type silentDriver struct {
	*hookedDriver
	events chan types.UID
	opened int
}

func (d *silentDriver) Watch(context.Context) (<-chan types.UID, error) {
	d.withLock(func() { d.opened++ })
	if readLocked(d.hookedDriver, &d.opened) > 1 {
		return make(chan types.UID), nil
	}
	return d.events, nil
}
