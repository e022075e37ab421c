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
	"cloudnative.tw/drover/test/assert"
)

// fencedFixture is an inventory whose engine refuses every change. It counts the
// changes.
type fencedFixture struct {
	*fixture
	changes, probes, events int // guarded by the engine's lock
	refusal                 error
}

func newFencedFixture(t *testing.T, leads func(context.Context) (bool, error)) *fencedFixture {
	t.Helper()
	g := &fencedFixture{fixture: newFixture(t), refusal: driver.Errorf(driver.ErrFenced, "epoch 8 has acted")}
	g.inv.ConfirmLeading = leads
	g.inv.OnFenced = func(error) { g.engine.withLock(func() { g.events++ }) }
	g.engine.ensure = func(doEnsure) (driver.Server, error) {
		g.engine.withLock(func() { g.changes++ })
		return driver.Server{}, g.refusal
	}
	g.engine.delete = func(t driver.Target, _ func() error) error {
		count := &g.changes
		if t.UID == probeUID {
			count = &g.probes
		}
		g.engine.withLock(func() { *count++ })
		return g.refusal
	}
	g.startLoop()
	g.waitUntilListed()
	g.takeChanges()
	return g
}

func (g *fencedFixture) readCount(n *int) int { return readLocked(g.engine, n) }

// ensureRefused makes a first call, which the engine refuses.
func (g *fencedFixture) ensureRefused() {
	g.t.Helper()
	if _, err := g.inv.Ensure(g.t.Context(), newSpec()); !errors.Is(err, g.refusal) {
		g.t.Fatalf("got %v, want %v", err, g.refusal)
	}
}

// tryChanges makes every call that would change something, a hundred times.
func (g *fencedFixture) tryChanges() {
	g.t.Helper()
	for range 100 {
		_, ensured := g.inv.Ensure(g.t.Context(), newSpec())
		deleted := g.inv.Delete(g.t.Context(), newSpec().Target, false)
		if !errors.Is(ensured, driver.ErrFenced) || !errors.Is(deleted, driver.ErrFenced) {
			g.t.Fatalf("Ensure fails with %v, Delete with %v, want both with %v", ensured, deleted, driver.ErrFenced)
		}
	}
}

// waitForProbeTimer waits until the next probe is waited for: besides that, only the tickers of lists
// and samples are waited for.
func (g *fencedFixture) waitForProbeTimer() {
	g.t.Helper()
	g.waitUntil("the next probe is waited for", func() bool { return g.clock.Waiters() == 3 })
}

// expectProbeAfter waits until the next probe is due in exactly d, and lets it run.
func (g *fencedFixture) expectProbeAfter(d time.Duration) {
	g.t.Helper()
	g.waitForProbeTimer()
	before := g.readCount(&g.probes)
	g.clock.Step(d - time.Millisecond)
	if g.clock.Waiters() != 3 {
		g.t.Errorf("a probe came before %s were over", d)
	}
	g.clock.Step(time.Millisecond)
	g.waitUntil("the engine is probed", func() bool { return g.readCount(&g.probes) == before+1 })
}

// TestFenceSuspendsDriver checks that only the refused driver of the leader
// is suspended. Nothing that changes something reaches its engine until it admits
// the leader again.
func TestFenceSuspendsDriver(t *testing.T) {
	g := newFencedFixture(t, func(context.Context) (bool, error) { return true, nil })
	g.ensureRefused()
	g.waitUntil("it is suspended", func() bool { return g.inv.Get("a").Fenced })
	seen := g.inv.Get("b")
	assert.True(t, seen.Answer == Unknown && seen.DownSince.Equal(t0) && errors.Is(seen.Cause, g.refusal) && seen.EngineID != "",
		"the answer for another server is %+v, want unknown with the engine's error", seen)
	g.tryChanges()
	for _, wait := range []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300} {
		g.expectProbeAfter(time.Duration(wait) * time.Second)
	}
	assert.Equal(t, "changes reached the engine, want the first alone", g.readCount(&g.changes), 1)
	if reported := g.takeChanges(); len(reported) != 1 || !reported[0].All || g.readCount(&g.events) != 1 {
		t.Errorf("reported %+v and %d events, want one of each", reported, g.readCount(&g.events))
	}
	assert.Equal(t, "drover_engine_fenced", testutil.ToFloat64(engineFenced.WithLabelValues("fake")), 1)
	g.engine.withLock(func() { g.engine.ensure, g.engine.delete = nil, nil })
	g.waitForProbeTimer()
	g.clock.Step(maxProbeDelay)
	g.waitForAnswer("a", Gone)
	g.ensureServer()
	seen = g.inv.Get("a")
	assert.True(t, seen.Answer == Present && !seen.Fenced, "after it was admitted: %+v", seen)
	g.waitUntil("that is reported", func() bool { reported := g.takeChanges(); return len(reported) > 0 && reported[0].All })
	assert.Equal(t, "drover_engine_fenced", testutil.ToFloat64(engineFenced.WithLabelValues("fake")), 0)
}

// TestReplacedEngineIsProbedSoon checks that it does not inherit the waits of the
// previous engine.
func TestReplacedEngineIsProbedSoon(t *testing.T) {
	g := newFencedFixture(t, func(context.Context) (bool, error) { return true, nil })
	g.ensureRefused()
	for _, wait := range []int{1, 2, 4, 8, 16, 32, 64, 128} {
		g.expectProbeAfter(time.Duration(wait) * time.Second)
	}
	g.waitForProbeTimer()
	g.replaceEngine("third")
	sendSignal(g.inv.cache.checkDue)
	g.waitUntil("the other engine is known", func() bool { return g.inv.Get("a").EngineID == "third" })
	before, since := g.readCount(&g.probes), g.clock.Now()
	g.waitUntil("the other engine is probed", func() bool {
		if len(g.inv.cache.replaced) == 0 && g.clock.Waiters() == 3 { // the wait begins again by then
			g.clock.Step(minProbeDelay)
		}
		return g.readCount(&g.probes) > before
	})
	if waited := g.clock.Since(since); waited > 128*time.Second { // the previous engine would be probed after 256 s
		t.Errorf("it was probed after %s", waited)
	}
}

// TestPredecessorIsNotSuspended checks that it only stops: its successor reports.
func TestPredecessorIsNotSuspended(t *testing.T) {
	confirmed := make(chan struct{})
	g := newFencedFixture(t, func(context.Context) (bool, error) { defer close(confirmed); return false, nil })
	g.ensureRefused()
	<-confirmed
	g.tryChanges()
	assert.Equal(t, "changes reached the engine, want the first alone", g.readCount(&g.changes), 1)
	if seen := g.inv.Get("a"); seen.Answer != Gone || seen.Fenced || g.readCount(&g.events) != 0 || len(g.takeChanges()) != 0 {
		t.Errorf("it says %+v and sent %d events, want as before", seen, g.readCount(&g.events))
	}
}

// TestFencedWhileLeadershipUnknown checks that nothing is reported or done while the API
// does not answer.
func TestFencedWhileLeadershipUnknown(t *testing.T) {
	answers := make(chan error)
	g := newFencedFixture(t, func(context.Context) (bool, error) { err := <-answers; return err == nil, err })
	g.ensureRefused()
	answers <- errors.New("no answer")
	g.tryChanges()
	assert.True(t, !g.inv.Get("a").Fenced && g.readCount(&g.changes) == 1, "it says %+v after %d changes", g.inv.Get("a"), g.readCount(&g.changes))
	g.waitUntil("it waits", func() bool { return g.clock.Waiters() == 3 })
	g.clock.Step(retryPeriod)
	answers <- nil
	g.waitUntil("it is suspended", func() bool { return g.inv.Get("a").Fenced })
}

// TestGuardRefusalSuspendsNothing checks that a refusal by the guard does not
// count as an engine's.
func TestGuardRefusalSuspendsNothing(t *testing.T) {
	g := newFencedFixture(t, func(context.Context) (bool, error) { return true, nil })
	g.refusal = driver.Errorf(driver.ErrNotLeading, "the Lease was not renewed in time")
	g.ensureRefused()
	g.ensureRefused()
	n := g.readCount(&g.changes)
	assert.True(t, n == 2 && !g.inv.Get("a").Fenced, "%d of 2 calls were let through, and it says %+v", n, g.inv.Get("a"))
}

// TestFencedSweepStops checks that of many orphans one is tried.
func TestFencedSweepStops(t *testing.T) {
	b := newSweepFixture(t, 3).withoutGrace()
	deletions := 0
	b.engine.delete = func(driver.Target, func() error) error {
		deletions++
		return driver.Errorf(driver.ErrFenced, "epoch 8 has acted")
	}
	b.sweepOnce()
	assert.ErrorIs(t, "the sweep", b.sweep.RunOnce(t.Context()), driver.ErrFenced)
	lists := b.engine.lists
	b.sweepOnce()
	assert.True(t, deletions == 1 && b.engine.lists == lists, "%d deletions and %d further lists, want the first deletion alone", deletions, b.engine.lists-lists)
	b.wantRemaining("s0 s1 s2")
}
