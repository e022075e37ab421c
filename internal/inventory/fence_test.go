// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"cloudnative.tw/drover/internal/driver"
)

// fencedRig is an inventory whose engine refuses every change. It counts the
// changes.
type fencedRig struct {
	*rig
	changes, probes, events int // guarded by the engine's lock
	refusal                 error
}

func newFencedRig(t *testing.T, leads func(context.Context) (bool, error)) *fencedRig {
	t.Helper()
	g := &fencedRig{rig: newRig(t), refusal: driver.Errorf(driver.ErrFenced, "epoch 8 has acted")}
	g.inv.Leads = leads
	g.inv.Refused = func(error) { g.engine.set(func() { g.events++ }) }
	g.engine.ensure = func(func() (driver.Server, error)) (driver.Server, error) {
		g.engine.set(func() { g.changes++ })
		return driver.Server{}, g.refusal
	}
	g.engine.delete = func(t driver.Target, _ func() error) error {
		count := &g.changes
		if t.UID == noServer {
			count = &g.probes
		}
		g.engine.set(func() { *count++ })
		return g.refusal
	}
	g.start()
	g.wantSoon("none", Gone)
	g.told()
	return g
}

func (g *fencedRig) count(n *int) int { return hook(g.engine, n) }

// refuse makes a first call, which the engine refuses.
func (g *fencedRig) refuse() {
	g.t.Helper()
	if _, err := g.inv.Ensure(g.t.Context(), spec()); !errors.Is(err, g.refusal) {
		g.t.Fatalf("got %v, want %v", err, g.refusal)
	}
}

// tryEverything makes every call that would change something, a hundred times.
func (g *fencedRig) tryEverything() {
	g.t.Helper()
	for range 100 {
		_, ensured := g.inv.Ensure(g.t.Context(), spec())
		deleted := g.inv.Delete(g.t.Context(), spec().Target, false)
		if !errors.Is(ensured, driver.ErrFenced) || !errors.Is(deleted, driver.ErrFenced) {
			g.t.Fatalf("Ensure fails with %v, Delete with %v, want both with %v", ensured, deleted, driver.ErrFenced)
		}
	}
}

// probe waits until the next probe is due in exactly d, and lets it run.
func (g *fencedRig) probe(d time.Duration) {
	g.t.Helper()
	// Besides the tickers of lists and samples, only the probe waits.
	g.eventually("the next probe is waited for", func() bool { return g.clock.Waiters() == 3 })
	before := g.count(&g.probes)
	g.clock.Step(d - time.Millisecond)
	if g.clock.Waiters() != 3 {
		g.t.Errorf("a probe came before %s were over", d)
	}
	g.clock.Step(time.Millisecond)
	g.eventually("the engine is probed", func() bool { return g.count(&g.probes) == before+1 })
}

// TestARefusalSuspendsTheDriver checks that only the refused driver of the leader
// is suspended. Nothing that changes something reaches its engine until it admits
// the leader again.
func TestARefusalSuspendsTheDriver(t *testing.T) {
	g := newFencedRig(t, func(context.Context) (bool, error) { return true, nil })
	g.refuse()
	g.eventually("it is suspended", func() bool { return g.inv.Get("a").Fenced })
	seen := g.inv.Get("b")
	if seen.Answer != Unknown || !seen.DownSince.Equal(t0) || !errors.Is(seen.Cause, g.refusal) || seen.EngineID == "" {
		t.Errorf("of another server it says %+v, want unknown with the engine's words", seen)
	}
	g.tryEverything()
	for _, wait := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		g.probe(time.Duration(wait) * time.Second)
	}
	if n := g.count(&g.changes); n != 1 {
		t.Errorf("%d changes reached the engine, want the first alone", n)
	}
	if told := g.told(); len(told) != 1 || !told[0].All || g.count(&g.events) != 1 {
		t.Errorf("told %+v and %d events, want one of each", told, g.count(&g.events))
	}
	if got := testutil.ToFloat64(engineFenced.WithLabelValues("fake")); got != 1 {
		t.Errorf("drover_engine_fenced is %v, want 1", got)
	}
	g.engine.set(func() { g.engine.ensure, g.engine.delete = nil, nil })
	g.clock.Step(lastProbe)
	g.wantSoon("a", Gone)
	g.ensure()
	if seen := g.inv.Get("a"); seen.Answer != Present || seen.Fenced {
		t.Errorf("after it was admitted: %+v", seen)
	}
	g.eventually("that is told", func() bool { told := g.told(); return len(told) > 0 && told[0].All })
	if got := testutil.ToFloat64(engineFenced.WithLabelValues("fake")); got != 0 {
		t.Errorf("drover_engine_fenced is %v, want 0", got)
	}
}

// TestAnotherEngineIsAskedSoon checks that it does not inherit the waits of the
// previous engine.
func TestAnotherEngineIsAskedSoon(t *testing.T) {
	g := newFencedRig(t, func(context.Context) (bool, error) { return true, nil })
	g.refuse()
	for _, wait := range []int{1, 2, 4, 8, 16, 32, 64, 128} {
		g.probe(time.Duration(wait) * time.Second)
	}
	g.eventually("the next probe is waited for", func() bool { return g.clock.Waiters() == 3 })
	g.exchange("third")
	notify(g.inv.suspect)
	g.eventually("the other engine is known", func() bool { return g.inv.Get("a").EngineID == "third" })
	before, since := g.count(&g.probes), g.clock.Now()
	g.eventually("the other engine is asked", func() bool {
		g.clock.Step(firstProbe)
		return g.count(&g.probes) > before
	})
	if waited := g.clock.Since(since); waited > 128*time.Second { // the previous engine would be probed after 256 s
		t.Errorf("it was asked after %s", waited)
	}
}

// TestAPredecessorIsNotSuspended checks that it only stops: its successor reports.
func TestAPredecessorIsNotSuspended(t *testing.T) {
	asked := make(chan struct{})
	g := newFencedRig(t, func(context.Context) (bool, error) { defer close(asked); return false, nil })
	g.refuse()
	<-asked
	g.tryEverything()
	if n := g.count(&g.changes); n != 1 {
		t.Errorf("%d changes reached the engine, want the first alone", n)
	}
	if seen := g.inv.Get("a"); seen.Answer != Gone || seen.Fenced || g.count(&g.events) != 0 || len(g.told()) != 0 {
		t.Errorf("it says %+v and sent %d events, want as before", seen, g.count(&g.events))
	}
}

// TestNobodyKnowsWhoLeads checks that nothing is reported or done while the API
// does not answer.
func TestNobodyKnowsWhoLeads(t *testing.T) {
	answers := make(chan error)
	g := newFencedRig(t, func(context.Context) (bool, error) { err := <-answers; return err == nil, err })
	g.refuse()
	answers <- errors.New("no answer")
	g.tryEverything()
	if g.inv.Get("a").Fenced || g.count(&g.changes) != 1 {
		t.Errorf("it says %+v after %d changes", g.inv.Get("a"), g.count(&g.changes))
	}
	g.eventually("it waits", func() bool { return g.clock.Waiters() == 3 })
	g.clock.Step(retryPeriod)
	answers <- nil
	g.eventually("it is suspended", func() bool { return g.inv.Get("a").Fenced })
}

// TestTheGuardsRefusalSuspendsNothing checks that a refusal by the guard does not
// count as an engine's.
func TestTheGuardsRefusalSuspendsNothing(t *testing.T) {
	g := newFencedRig(t, func(context.Context) (bool, error) { return true, nil })
	g.refusal = driver.Errorf(driver.ErrNotLeading, "the Lease was not renewed in time")
	g.refuse()
	g.refuse()
	if n := g.count(&g.changes); n != 2 || g.inv.Get("a").Fenced {
		t.Errorf("%d of 2 calls were let through, and it says %+v", n, g.inv.Get("a"))
	}
}

// TestARefusalEndsASweep checks that of many orphans one is tried.
func TestARefusalEndsASweep(t *testing.T) {
	b := newBroom(t)
	b.sweep.Grace = 0
	b.addAll(3)
	deletions := 0
	b.engine.delete = func(driver.Target, func() error) error {
		deletions++
		return driver.Errorf(driver.ErrFenced, "epoch 8 has acted")
	}
	b.once()
	if err := b.sweep.Once(t.Context()); !errors.Is(err, driver.ErrFenced) {
		t.Errorf("got %v, want %v", err, driver.ErrFenced)
	}
	lists := b.engine.lists
	b.once()
	if deletions != 1 || b.engine.lists != lists {
		t.Errorf("%d deletions and %d further lists, want the first deletion alone", deletions, b.engine.lists-lists)
	}
	b.want("s0 s1 s2")
}
