// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
)

func TestNewNeedsAnEngineWithAnID(t *testing.T) {
	var nobody struct{ driver.Driver }
	if _, err := New(Options{Name: "x", Driver: nobody}); err == nil || !strings.Contains(err.Error(), "driver x") {
		t.Errorf("error %v", err)
	}
}

func TestUnknownUntilListed(t *testing.T) {
	g := newRig(t)
	g.memory.SetAvailable(false)
	if seen := g.inv.Get("a"); seen.Answer != Unknown || !seen.DownSince.IsZero() || seen.Cause == nil || seen.EngineID != "" {
		t.Errorf("before it was started: %+v", seen)
	}
	g.start()
	g.eventually("it has asked", func() bool {
		cause := g.inv.Get("a").Cause
		return cause != nil && errors.Is(cause, driver.ErrUnavailable)
	})
	g.eventually("it waits", g.clock.HasWaiters)
	if seen := g.inv.Get("a"); seen.Answer != Unknown || !seen.DownSince.Equal(t0) {
		t.Errorf("with the engine out of reach: %+v", seen)
	}
	g.memory.SetAvailable(true)
	g.eventually("it is listed", func() bool {
		g.clock.Step(retryPeriod)
		return g.inv.Get("a").Answer == Gone
	})
	if seen := g.inv.Get("a"); seen.EngineID == "" || seen.Cause != nil || !seen.DownSince.IsZero() {
		t.Errorf("after the list: %+v", seen)
	}
	if told := g.told(); len(told) != 2 || !told[0].All || !told[1].All {
		t.Errorf("told %+v, want of the loss and of the return that all is to be looked at", told)
	}
}

// TestTheFirstListIsToldOnce checks that the servers of the first list are reported
// together, since none of them has changed.
func TestTheFirstListIsToldOnce(t *testing.T) {
	g := newRig(t)
	g.add("a")
	g.add("b")
	g.start()
	g.wantSoon("b", Present)
	g.eventually("it is told", func() bool {
		g.mu.Lock()
		defer g.mu.Unlock()
		return len(g.changes) > 0
	})
	if told := g.told(); len(told) != 1 || !told[0].All {
		t.Errorf("told %+v, want once that all is to be looked at", told)
	}
	g.edit("a", func(r *fake.Record) { r.State = driver.StateStopped })
	g.eventually("a change is told", func() bool {
		told := g.told()
		return len(told) == 1 && told[0].UID == "a"
	})
}

// TestAnIncompleteListIsNone checks that nothing is known until a list is complete,
// with the same engine before and after it.
func TestAnIncompleteListIsNone(t *testing.T) {
	for name, meddle := range map[string]func(*meddler){
		"the list fails": func(m *meddler) {
			m.list = func(context.Context, func() ([]driver.Server, error)) ([]driver.Server, error) {
				return nil, errors.New("half of it")
			}
		},
		"the engine is swapped meanwhile": func(m *meddler) {
			asked := 0
			m.engineID = func(id string) string {
				asked++
				return id + strings.Repeat("x", asked%2)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			g.engine.set(func() { meddle(g.engine) })
			g.start()
			g.eventually("it was tried three times", func() bool {
				g.clock.Step(retryPeriod)
				return hook(g.engine, &g.engine.lists) >= 3
			})
			if seen := g.inv.Get("a"); seen.Answer != Unknown {
				t.Errorf("it answers %+v", seen)
			}
			g.engine.set(func() { g.engine.list, g.engine.engineID = nil, nil })
			g.eventually("it is listed", func() bool {
				g.clock.Step(retryPeriod)
				return g.inv.Get("a").Answer == Gone
			})
		})
	}
}

func TestAListThatHangsIsCutShort(t *testing.T) {
	g := newRig(t)
	g.inv.CallTimeout = 20 * time.Millisecond
	g.engine.set(func() {
		g.engine.list = func(ctx context.Context, _ func() ([]driver.Server, error)) ([]driver.Server, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
	})
	g.start()
	g.eventually("it gave up", func() bool { return errors.Is(g.inv.Get("a").Cause, context.DeadlineExceeded) })
}

func TestFollowsTheEngine(t *testing.T) {
	g := listed(t)
	g.told()
	g.add("a")
	g.wantSoon("a", Present)
	if s := g.inv.Get("a").Server; s.Name != "vm-a" || s.State != driver.StateRunning {
		t.Errorf("server %+v", s)
	}
	g.edit("a", func(r *fake.Record) { r.State = driver.StatePaused })
	g.eventually("it is paused", func() bool { return g.inv.Get("a").Server.State == driver.StatePaused })
	g.memory.Remove("a")
	g.wantSoon("a", Gone)

	g.eventually("three changes are told", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.changes) == 3 })
	want := Change{UID: "a", VM: types.NamespacedName{Namespace: "default", Name: "vm-a"}}
	for _, c := range g.told() {
		if c != want {
			t.Errorf("told %+v, want %+v", c, want)
		}
	}
	g.eventually("nothing is kept of it", func() bool {
		g.inv.mu.Lock()
		defer g.inv.mu.Unlock()
		return len(g.inv.entries) == 0
	})
}

// TestToldByTheNameThatWasKnown covers a server that breaks, and a server of which
// nothing was ever known.
func TestToldByTheNameThatWasKnown(t *testing.T) {
	g := listed(t)
	g.add("a")
	g.wantSoon("a", Present)
	g.told()
	g.engine.set(func() {
		g.engine.list = func(_ context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error) {
			servers, err := do()
			for n := range servers {
				servers[n] = driver.Server{UID: servers[n].UID, State: servers[n].State, Err: errors.New("broken")}
			}
			return servers, err
		}
	})
	g.edit("a", func(r *fake.Record) { r.State = driver.StatePaused })
	g.add("b")
	for _, want := range []Change{{UID: "a", VM: types.NamespacedName{Namespace: "default", Name: "vm-a"}}, {UID: "b"}} {
		g.eventually("it is told", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return slices.Contains(g.changes, want) })
	}
}

// TestOwnActionsAreNotTold checks that their result is in the cache at once and not
// reported.
func TestOwnActionsAreNotTold(t *testing.T) {
	g := listed(t)
	g.told()
	s := g.ensure()
	if seen := g.inv.Get("a"); seen.Answer != Present || seen.Server.ID != s.ID {
		t.Errorf("after Ensure: %+v", seen)
	}
	g.add("b") // comes after all that Ensure caused
	g.wantSoon("b", Present)
	for _, c := range g.told() {
		if c.UID != "b" {
			t.Errorf("told %+v", c)
		}
	}
}

// TestAListChangesOnlyWhatNobodyTouchedSince checks that a list leaves alone what
// was touched since it began: its answer may be older.
func TestAListChangesOnlyWhatNobodyTouchedSince(t *testing.T) {
	for name, tc := range map[string]struct {
		before, during func(*rig)
		want           Answer
	}{
		"created meanwhile": {
			before: func(*rig) {}, during: func(g *rig) { g.ensure() }, want: Present,
		},
		"created before": {
			before: func(g *rig) { g.add("a") }, during: func(*rig) {}, want: Present,
		},
		"removed by hand before": {
			before: func(g *rig) { g.ensure(); g.memory.Remove("a") }, during: func(*rig) {}, want: Gone,
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t)
			tc.before(g)
			g.engine.set(func() {
				g.engine.list = func(_ context.Context, do func() ([]driver.Server, error)) ([]driver.Server, error) {
					servers, err := do()
					tc.during(g)
					return servers, err
				}
			})
			if err := g.inv.complete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := g.inv.Get("a").Answer; got != tc.want {
				t.Errorf("answer %v, want %v", got, tc.want)
			}
		})
	}
}

// TestAListDuringAnActionIsIgnored checks this even for a list that began and ended
// during the action.
func TestAListDuringAnActionIsIgnored(t *testing.T) {
	g := newRig(t)
	s := g.ensure()
	g.engine.set(func() {
		g.engine.ensure = func(do func() (driver.Server, error)) (driver.Server, error) {
			g.memory.Remove("a")
			if err := g.inv.complete(t.Context()); err != nil {
				t.Error(err)
			}
			if seen := g.inv.Get("a"); seen.Server.ID != s.ID {
				t.Errorf("during the action the inventory has %+v", seen)
			}
			return do()
		}
	})
	if again := g.ensure(); g.inv.Get("a").Server.ID != again.ID {
		t.Errorf("the inventory has %+v", g.inv.Get("a"))
	}
}

// TestAnEventDuringAnActionLeadsToAnotherLook checks this because the event may
// concern a change after the action's result.
func TestAnEventDuringAnActionLeadsToAnotherLook(t *testing.T) {
	g := listed(t)
	g.ensure()
	marked := func() bool {
		g.inv.mu.Lock()
		defer g.inv.mu.Unlock()
		return g.inv.entries["a"].look
	}
	g.engine.set(func() {
		g.engine.ensure = func(do func() (driver.Server, error)) (driver.Server, error) {
			s, err := do()
			g.edit("a", func(r *fake.Record) { r.State = driver.StatePaused })
			g.eventually("the event is there", marked)
			return s, err
		}
	})
	g.ensure()
	g.eventually("it is looked at", func() bool { return g.inv.Get("a").Server.State == driver.StatePaused })
}

func TestOutageAndReturn(t *testing.T) {
	g := listed(t)
	g.ensure()
	g.told()
	g.clock.Step(time.Minute)
	down := g.clock.Now()
	g.memory.SetAvailable(false)
	g.wantSoon("a", Unknown)
	seen := g.inv.Get("a")
	if !seen.DownSince.Equal(down) || seen.Cause == nil || !seen.BackSince.IsZero() || seen.EngineID == "" {
		t.Errorf("during the outage: %+v", seen)
	}
	g.eventually("the outage is told", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.changes) > 0 })
	g.memory.SetAvailable(true)
	g.eventually("it is back", func() bool {
		g.clock.Step(retryPeriod)
		return g.inv.Get("a").Answer == Present
	})
	if seen := g.inv.Get("a"); !seen.BackSince.After(down) {
		t.Errorf("after the outage: %+v", seen)
	}
	g.eventually("both are told", func() bool { g.mu.Lock(); defer g.mu.Unlock(); return len(g.changes) == 2 })
	for _, c := range g.told() {
		if !c.All {
			t.Errorf("told %+v, want that all is to be looked at", c)
		}
	}
}

// TestACallThatMissesTheEngineHasItAsked checks that the engine is asked at once,
// not at the next period.
func TestACallThatMissesTheEngineHasItAsked(t *testing.T) {
	unavailable := driver.Errorf(driver.ErrUnavailable, "gone")
	for name, call := range map[string]func(*rig) error{
		"Ensure": func(g *rig) error {
			g.engine.set(func() {
				g.engine.ensure = func(func() (driver.Server, error)) (driver.Server, error) { return driver.Server{}, unavailable }
			})
			_, err := g.inv.Ensure(g.t.Context(), spec())
			return err
		},
		"Delete": func(g *rig) error {
			g.engine.set(func() { g.engine.delete = func(driver.Target, func() error) error { return unavailable } })
			return g.inv.Delete(g.t.Context(), driver.Target{UID: "a"}, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			g := listed(t)
			g.engine.set(func() {
				g.engine.list = func(context.Context, func() ([]driver.Server, error)) ([]driver.Server, error) {
					return nil, unavailable
				}
			})
			if err := call(g); !errors.Is(err, driver.ErrUnavailable) {
				t.Fatalf("error %v", err)
			}
			g.wantSoon("a", Unknown)
		})
	}
}

// TestAnotherEngine checks that nothing known of the first engine is kept.
func TestAnotherEngine(t *testing.T) {
	g := listed(t)
	g.ensure()
	first := g.inv.Get("a").EngineID
	g.engine.set(func() {
		g.engine.engineID = func(string) string { return "another" }
		g.engine.list = func(context.Context, func() ([]driver.Server, error)) ([]driver.Server, error) { return nil, nil }
	})
	if seen, err := g.inv.Look(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), first) || !strings.Contains(err.Error(), "another") {
		t.Errorf("a live look says %+v, error %v", seen, err)
	}
	g.eventually("the other engine is known", func() bool { return g.inv.Get("a").EngineID == "another" })
	g.wantSoon("a", Gone)
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
			g := newRig(t)
			if err := g.inv.complete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if tc.existed {
				g.ensure()
			}
			g.engine.set(func() {
				g.engine.ensure = func(func() (driver.Server, error)) (driver.Server, error) { return driver.Server{}, tc.err }
			})
			_, _ = g.inv.Ensure(t.Context(), spec())
			if got := g.inv.Get("a").SettlesAt; !got.Equal(tc.want) {
				t.Errorf("settles at %v, want %v", got, tc.want)
			}
			if err := g.inv.complete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := g.inv.Get("a").SettlesAt; !got.Equal(tc.want) {
				t.Errorf("after a list it settles at %v, want %v", got, tc.want)
			}
			g.engine.set(func() { g.engine.ensure = nil })
			g.ensure()
			if got := g.inv.Get("a").SettlesAt; !got.IsZero() {
				t.Errorf("after a success it settles at %v", got)
			}
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
			g := newRig(t)
			g.engine.set(func() {
				g.engine.list = func(context.Context, func() ([]driver.Server, error)) ([]driver.Server, error) {
					return tc.servers, nil
				}
			})
			if err := g.inv.complete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if seen := g.inv.Get("a"); seen.Answer != tc.answer || !slices.Equal(seen.Duplicates, tc.duplicates) || (seen.Answer == Present && seen.Server.ID != "1") {
				t.Errorf("it answers %+v", seen)
			}
		})
	}
}

// TestWhatOnlyEnsureCanTellIsNoChange checks that another error value of the same
// text is no change either.
func TestWhatOnlyEnsureCanTellIsNoChange(t *testing.T) {
	base := driver.Server{UID: "a", ID: "1", State: driver.StateRunning, Err: errors.New("stuck")}
	for name, tc := range map[string]struct {
		change func(*driver.Server)
		same   bool
	}{
		"pending":           {func(s *driver.Server) { s.Pending = []string{"image"} }, true},
		"error of one text": {func(s *driver.Server) { s.Err = errors.New("stuck") }, true},
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
			if got := same([]driver.Server{base}, []driver.Server{next}); got != tc.same {
				t.Errorf("same is %t", got)
			}
		})
	}
}

// TestAPeriodFindsWhatNoEventTold checks that the periodic list finds a change
// without an event.
func TestAPeriodFindsWhatNoEventTold(t *testing.T) {
	g := newRig(t)
	deaf := &deafDriver{meddler: g.engine, events: make(chan types.UID)}
	inv, err := New(Options{Name: "deaf", Driver: deaf, Clock: g.clock, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	g.inv = inv
	g.start()
	g.wantSoon("a", Gone)
	g.add("a")
	g.eventually("it waits", g.clock.HasWaiters)
	g.eventually("it is found", func() bool {
		g.clock.Step(30 * time.Second)
		return g.inv.Get("a").Answer == Present
	})
	close(deaf.events)
	g.eventually("the stream is opened again", func() bool { return hook(g.engine, &deaf.opened) >= 2 })
	g.wantSoon("a", Present)
}

// deafDriver has a Watch that reports nothing and can be closed once.
type deafDriver struct {
	*meddler
	events chan types.UID
	opened int
}

func (d *deafDriver) Watch(context.Context) (<-chan types.UID, error) {
	d.set(func() { d.opened++ })
	if hook(d.meddler, &d.opened) > 1 {
		return make(chan types.UID), nil
	}
	return d.events, nil
}
