// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

func testListComplete(t *testing.T, e *env) {
	specs := make([]driver.ServerSpec, 6)
	for i := range specs {
		specs[i] = e.spec(t, fmt.Sprintf("one-of-many-%d", i))
	}
	inParallel(len(specs), func(i int) { e.tryReach(t, specs[i]) })
	states := []driver.Power{driver.PowerOff, driver.PowerPaused}
	for i, power := range states {
		e.reach(t, e.forced(withPower(specs[i], power)), stateOf(power))
	}
	wantUIDs(t, "List of all", list(t, e.d), specs)
	wantUIDs(t, "List of two", list(t, e.d, specs[0].UID, specs[4].UID), []driver.ServerSpec{specs[0], specs[4]})
	wantUIDs(t, "List of one and of one that is not there", list(t, e.d, specs[1].UID, newUID()), specs[1:2])
	e.gone(t, e.d, specs[5].UID)
	wantUIDs(t, "List after a Delete", list(t, e.d), specs[:5])
}

// tryReach is reach for goroutines, which must not end the test.
func (e *env) tryReach(t *testing.T, spec driver.ServerSpec) {
	deadline := e.in(e.Patience)
	for e.clock.Now().Before(deadline) {
		s, err := e.d.Ensure(t.Context(), spec)
		if err != nil && !errors.Is(err, driver.ErrRetry) {
			t.Errorf("Ensure: %v", err)
			return
		}
		if s.State == driver.StateRunning {
			return
		}
		e.clock.Sleep(pollEvery)
	}
	t.Errorf("the server %s/%s did not run within %v", spec.Namespace, spec.Name, e.Patience)
}

// forced makes a stop end soon, whatever the guest does.
func (e *env) forced(spec driver.ServerSpec) driver.ServerSpec {
	spec.StopBy = e.in(2 * time.Second)
	return spec
}

func wantUIDs(t *testing.T, what string, got []driver.Server, want []driver.ServerSpec) {
	t.Helper()
	names := map[types.UID]string{}
	for _, spec := range want {
		names[spec.UID] = spec.Name
	}
	for _, s := range got {
		if names[s.UID] != s.Name {
			t.Errorf("%s: got %s, which is not wanted or is there twice", what, describe(s))
		}
		delete(names, s.UID)
	}
	for uid, name := range names {
		t.Errorf("%s: %s (%s) is missing", what, name, uid)
	}
}

// watcher receives what Watch sends.
type watcher struct {
	uids <-chan types.UID
	stop context.CancelFunc
}

func watch(t *testing.T, d driver.Driver) *watcher {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	uids, err := d.Watch(ctx)
	if err != nil {
		cancel()
		t.Fatalf("Watch: %v", err)
	}
	t.Cleanup(cancel)
	return &watcher{uids: uids, stop: cancel}
}

// tells waits until Watch sends uid.
func (w *watcher) tells(t *testing.T, e *env, uid types.UID, what string) {
	t.Helper()
	timeout := time.After(e.Patience)
	for {
		select {
		case got, open := <-w.uids:
			if !open {
				t.Fatalf("Watch closed before it told of %s", what)
			}
			if got == uid {
				return
			}
		case <-timeout:
			t.Fatalf("Watch did not tell of %s within %v", what, e.Patience)
		}
	}
}

// drain takes what has been sent so far, so that the next event is a new one.
// An event may be late, so drain waits for a pause.
func (w *watcher) drain() {
	for {
		select {
		case _, open := <-w.uids:
			if !open {
				return
			}
		case <-time.After(150 * time.Millisecond):
			return
		}
	}
}

// closes waits until the channel is closed.
func (w *watcher) closes(t *testing.T, e *env, why string) {
	t.Helper()
	timeout := time.After(e.Patience)
	for {
		select {
		case _, open := <-w.uids:
			if !open {
				return
			}
		case <-timeout:
			t.Fatalf("Watch did not close within %v after %s", e.Patience, why)
		}
	}
}

func testWatchOwnChanges(t *testing.T, e *env) {
	here, there := watch(t, e.d), watch(t, e.open(t, e.cluster))
	both := func(uid types.UID, what string) {
		here.tells(t, e, uid, what)
		there.tells(t, e, uid, what)
		inParallel(2, func(i int) { []*watcher{here, there}[i].drain() })
	}
	spec := e.spec(t, "watched")
	e.reach(t, spec, driver.StateRunning)
	both(spec.UID, "the creation")
	e.reach(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	both(spec.UID, "the pause")
	e.reach(t, spec, driver.StateRunning)
	both(spec.UID, "the resumption")
	e.reach(t, e.off(spec), driver.StateStopped)
	both(spec.UID, "the stop")
	e.gone(t, e.d, spec.UID)
	both(spec.UID, "the removal")
}

func testWatchHandChanges(t *testing.T, e *env) {
	hands := e.Hands
	need(t, hands.Kill != nil || hands.Stop != nil || hands.Pause != nil || hands.Remove != nil, "Hands at all")
	for name, hand := range map[string]func(*testing.T, driver.Server){
		"kill": hands.Kill, "stop": hands.Stop, "pause": hands.Pause, "remove": hands.Remove,
	} {
		if hand == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			spec := e.spec(t, "watched-"+name)
			s := e.reach(t, spec, driver.StateRunning)
			w := watch(t, e.d)
			w.drain()
			hand(t, s)
			w.tells(t, e, spec.UID, "the "+name+" by hand")
		})
	}
}

func testWatchEnds(t *testing.T, e *env) {
	w, other := watch(t, e.d), watch(t, e.d)
	w.stop()
	w.closes(t, e, "its context ended")
	spec := e.spec(t, "watched-by-another")
	e.reach(t, spec, driver.StateRunning)
	other.tells(t, e, spec.UID, "a creation after another Watch ended")

	ctx, cancel := contextOver(t)
	defer cancel()
	if uids, err := e.d.Watch(ctx); err == nil {
		over := &watcher{uids: uids}
		over.closes(t, e, "it was opened with a context that was over")
	}
}

// testLoseEngine checks that an unreachable engine never looks like an empty one.
func testLoseEngine(t *testing.T, e *env) {
	need(t, e.Losable != nil, "Losable")
	cut := e.Losable(t, e.cluster)
	e.d = cut.Driver
	t.Cleanup(func() { e.clean(t, cut.Driver) })
	spec := e.spec(t, "lost")
	before := e.reach(t, spec, driver.StateRunning)
	w := watch(t, e.d)

	cut.Lose()
	w.closes(t, e, "the engine was lost")
	e.until(t, "calls to say that the engine is lost", func() error { return e.checkLost(t, spec) })
	cut.Restore()

	e.until(t, "the engine to be back", func() error {
		servers, err := e.d.List(t.Context())
		if err == nil && len(servers) != 1 {
			t.Fatalf("after the outage List shows %s", describe(servers...))
		}
		return err
	})
	sameRun(t, one(t, e.d, spec.UID), before)
	again := watch(t, e.d)
	e.reach(t, e.off(spec), driver.StateStopped)
	again.tells(t, e, spec.UID, "a stop after the outage")
}

// checkLost makes every call once. It returns an error for a call that did not fail as it
// should, and fails the test for a harmful answer.
func (e *env) checkLost(t *testing.T, spec driver.ServerSpec) error {
	t.Helper()
	ctx := t.Context()
	_, ensureErr := e.d.Ensure(ctx, e.spec(t, "not-now"))
	_, usageErr := e.d.Usage(ctx, spec.UID)
	_, watchErr := e.d.Watch(ctx)
	all, listErr := e.d.List(ctx)
	named, namedErr := e.d.List(ctx, spec.UID)
	deleteErr := e.d.Delete(ctx, driver.Target{UID: newUID()}, false)
	if (listErr == nil && len(all) == 0) || (namedErr == nil && len(named) == 0) {
		t.Fatal("List shows an empty engine although it is lost")
	}
	for call, err := range map[string]error{
		"Ensure": ensureErr, "Usage": usageErr, "Watch": watchErr, "List": listErr, "List of one": namedErr, "Delete": deleteErr,
	} {
		if !errors.Is(err, driver.ErrUnavailable) {
			return fmt.Errorf("%s: got error %q, want the kind %q", call, fmt.Sprint(err), driver.ErrUnavailable.Error())
		}
	}
	return nil
}

func testUsage(t *testing.T, e *env) {
	on, off := e.spec(t, "used"), e.spec(t, "unused")
	s := e.reach(t, on, driver.StateRunning)
	e.reach(t, e.off(off), driver.StateStopped)
	samples, err := e.d.Usage(t.Context(), on.UID, off.UID, newUID())
	must(t, "Usage", err)
	if len(samples) != 1 {
		t.Fatalf("Usage: got %d samples, want one, of the server that runs: %+v", len(samples), samples)
	}
	u := samples[0]
	if u.UID != on.UID || u.Run != s.Run || u.At.IsZero() || u.CPU < 0 {
		t.Errorf("Usage: got %+v, want UID %s, run %s and a time", u, on.UID, s.Run)
	}
	if u.MemoryBytes <= 0 || u.MemoryBytes > on.MemoryBytes {
		t.Errorf("it uses %d bytes of memory, want more than 0 and no more than its %d", u.MemoryBytes, on.MemoryBytes)
	}
	none, err := e.d.Usage(t.Context())
	must(t, "Usage of nothing", err)
	if len(none) != 0 {
		t.Errorf("Usage of no UID: got %+v", none)
	}
}

// testUsageUnderLoad checks that two samples of one run show the guest's use.
func testUsageUnderLoad(t *testing.T, e *env) {
	need(t, e.Hands.Burn != nil, "Hands.Burn")
	spec := e.spec(t, "busy")
	s := e.reach(t, spec, driver.StateRunning)
	sample := func() driver.Usage {
		samples, err := e.d.Usage(t.Context(), spec.UID)
		must(t, "Usage", err)
		if len(samples) != 1 || samples[0].Run != s.Run {
			t.Fatalf("Usage: got %+v, want one sample of the run %s", samples, s.Run)
		}
		return samples[0]
	}
	e.Hands.Burn(t, s)
	first := sample()
	last := first
	e.until(t, "the CPU counter to grow by 100 ms", func() error {
		next := sample()
		if next.CPU < last.CPU || next.At.Before(last.At) {
			t.Fatalf("the counter went back from %v at %v to %v at %v", last.CPU, last.At, next.CPU, next.At)
		}
		last = next
		if grown := last.CPU - first.CPU; grown < 100*time.Millisecond {
			return fmt.Errorf("it grew by %v in %v", grown, last.At.Sub(first.At))
		}
		return nil
	})
}
