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
	"cloudnative.tw/drover/internal/driver/drivertest/streams"
	"cloudnative.tw/drover/test/assert"
)

func testListComplete(t *testing.T, e *env) {
	specs := make([]driver.ServerSpec, 6)
	for i := range specs {
		specs[i] = e.newSpec(t, fmt.Sprintf("one-of-many-%d", i))
	}
	runParallel(len(specs), func(i int) { _, _ = e.driver.Ensure(t.Context(), specs[i]) })
	for _, spec := range specs {
		e.ensureState(t, spec, driver.StateRunning)
	}
	states := []driver.Power{driver.PowerOff, driver.PowerPaused}
	for i, power := range states {
		e.ensureState(t, e.forceSoon(withPower(specs[i], power)), stateFor(power))
	}
	wantUIDs(t, "List of all", listServers(t, e.driver), specs)
	wantUIDs(t, "List of two", listServers(t, e.driver, specs[0].UID, specs[4].UID), []driver.ServerSpec{specs[0], specs[4]})
	wantUIDs(t, "List of one server and an unknown UID", listServers(t, e.driver, specs[1].UID, newUID()), specs[1:2])
	e.deleteUntilGone(t, e.driver, specs[5].UID)
	wantUIDs(t, "List after a Delete", listServers(t, e.driver), specs[:5])
}

func wantUIDs(t *testing.T, subject string, got []driver.Server, want []driver.ServerSpec) {
	t.Helper()
	names := map[types.UID]string{}
	for _, spec := range want {
		names[spec.UID] = spec.Name
	}
	for _, s := range got {
		assert.True(t, names[s.UID] == s.Name, "%s: got %s, which is unwanted or a duplicate", subject, describeServers(s))
		delete(names, s.UID)
	}
	for uid, name := range names {
		t.Errorf("%s: %s (%s) is missing", subject, name, uid)
	}
}

// watcher receives the events of a Watch until stop is called.
type watcher struct {
	uids <-chan types.UID
	stop context.CancelFunc
}

func openWatch(t *testing.T, d driver.Driver) *watcher {
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

// waitForEvent waits until Watch sends uid.
func (w *watcher) waitForEvent(t *testing.T, uid types.UID, condition string) {
	t.Helper()
	assert.Eventually(t, "Watch reports "+condition, func(testing.TB) error {
		for {
			select {
			case got, open := <-w.uids:
				assert.Require(t, open, "Watch closed before it reported %s", condition)
				if got == uid {
					return nil
				}
			default:
				return errors.New("the watch has not sent the server's UID")
			}
		}
	})
}

// eventDelay is how long drainEvents waits for one more event of an earlier change.
const eventDelay = 150 * time.Millisecond

// drainEvents discards the events of earlier changes. An event that arrives after eventDelay would
// be taken for the next change: the case then proves less, but does not fail.
func (w *watcher) drainEvents() {
	for {
		select {
		case _, open := <-w.uids:
			if !open {
				return
			}
		case <-time.After(eventDelay):
			return
		}
	}
}

func testWatchOwnChanges(t *testing.T, e *env) {
	watchers := []*watcher{openWatch(t, e.driver), openWatch(t, e.openDriver(t, e.cluster))}
	waitForBoth := func(uid types.UID, change string) {
		for _, w := range watchers {
			w.waitForEvent(t, uid, change)
		}
		runParallel(2, func(i int) { watchers[i].drainEvents() })
	}
	spec := e.newSpec(t, "watched")
	e.ensureState(t, spec, driver.StateRunning)
	waitForBoth(spec.UID, "the creation")
	e.ensureState(t, withPower(spec, driver.PowerPaused), driver.StatePaused)
	waitForBoth(spec.UID, "the pause")
	e.ensureState(t, spec, driver.StateRunning)
	waitForBoth(spec.UID, "the resumption")
	e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
	waitForBoth(spec.UID, "the stop")
	e.deleteUntilGone(t, e.driver, spec.UID)
	waitForBoth(spec.UID, "the removal")
}

func testWatchHandChanges(t *testing.T, e *env) {
	outOfBand := e.OutOfBand
	streams.Require(t, outOfBand.Kill != nil || outOfBand.Stop != nil || outOfBand.Pause != nil || outOfBand.Remove != nil, "function in OutOfBand")
	for name, act := range map[string]func(*testing.T, driver.Server){
		"kill": outOfBand.Kill, "stop": outOfBand.Stop, "pause": outOfBand.Pause, "remove": outOfBand.Remove,
	} {
		if act == nil {
			continue
		}
		t.Run(name, func(t *testing.T) {
			spec := e.newSpec(t, "watched-"+name)
			s := e.ensureState(t, spec, driver.StateRunning)
			w := openWatch(t, e.driver)
			w.drainEvents()
			act(t, s)
			w.waitForEvent(t, spec.UID, "the "+name+" by hand")
		})
	}
}

func testWatchEnds(t *testing.T, e *env) {
	w, other := openWatch(t, e.driver), openWatch(t, e.driver)
	w.stop()
	WaitForClose(t, w.uids, "its context ended")
	spec := e.newSpec(t, "watched-by-another")
	e.ensureState(t, spec, driver.StateRunning)
	other.waitForEvent(t, spec.UID, "a creation after another Watch ended")

	ctx, cancel := cancelledContext(t)
	defer cancel()
	if uids, err := e.driver.Watch(ctx); err == nil {
		WaitForClose(t, uids, "it was opened with a context that had ended")
	}
}

// testLoseEngine checks that an unreachable engine never looks like an empty one.
func testLoseEngine(t *testing.T, e *env) {
	streams.Require(t, e.Losable != nil, "Losable")
	losable := e.Losable(t, e.cluster)
	e.driver = losable.Driver
	t.Cleanup(func() { e.removeServers(t, losable.Driver) })
	spec := e.newSpec(t, "lost")
	before := e.ensureState(t, spec, driver.StateRunning)
	w := openWatch(t, e.driver)

	losable.Lose()
	if !e.ResumesWatch {
		WaitForClose(t, w.uids, "the engine was lost")
	}
	assert.Eventually(t, "calls to report that the engine is lost", func(testing.TB) error { return e.checkUnavailable(t, spec) })
	losable.Restore()

	assert.Eventually(t, "the engine to be back", func(testing.TB) error {
		servers, err := e.driver.List(t.Context())
		assert.Require(t, err != nil || len(servers) == 1, "after the outage List shows %s", describeServers(servers...))
		return err
	})
	wantSameRun(t, listOne(t, e.driver, spec.UID), before)
	again := openWatch(t, e.driver)
	e.ensureState(t, e.stopSpec(spec), driver.StateStopped)
	again.waitForEvent(t, spec.UID, "a stop after the outage")
	if e.ResumesWatch {
		w.drainEvents()
		e.ensureState(t, spec, driver.StateRunning)
		w.waitForEvent(t, spec.UID, "a start, to the watch opened before the outage")
	}
}

// checkUnavailable makes every call once, and returns an error unless all fail with
// ErrUnavailable. It fails the test at once if List reports an empty engine.
func (e *env) checkUnavailable(t *testing.T, spec driver.ServerSpec) error {
	t.Helper()
	ctx := t.Context()
	_, ensureErr := e.driver.Ensure(ctx, e.newSpec(t, "not-now"))
	_, usageErr := e.driver.Usage(ctx, spec.UID)
	_, watchErr := e.driver.Watch(ctx)
	all, listErr := e.driver.List(ctx)
	named, namedErr := e.driver.List(ctx, spec.UID)
	deleteErr := e.driver.Delete(ctx, driver.Target{UID: newUID()}, false)
	assert.Require(t, (listErr != nil || len(all) != 0) && (namedErr != nil || len(named) != 0), "List reports an empty engine although the engine is lost")
	for call, err := range map[string]error{
		"Ensure": ensureErr, "Usage": usageErr, "Watch": watchErr, "List": listErr, "List of one": namedErr, "Delete": deleteErr,
	} {
		if e.ResumesWatch && call == "Usage" && err == nil {
			continue
		}
		if !errors.Is(err, driver.ErrUnavailable) {
			return fmt.Errorf("%s: got error %q, want the kind %q", call, fmt.Sprint(err), driver.ErrUnavailable.Error())
		}
	}
	return nil
}

func testUsage(t *testing.T, e *env) {
	on, off := e.newSpec(t, "used"), e.newSpec(t, "unused")
	s := e.ensureState(t, on, driver.StateRunning)
	e.ensureState(t, e.stopSpec(off), driver.StateStopped)
	var u driver.Usage
	assert.Eventually(t, "one sample, of the server that runs", func(testing.TB) error { // a new server may not answer yet
		samples, err := e.driver.Usage(t.Context(), on.UID, off.UID, newUID())
		if err != nil {
			return err
		}
		if len(samples) != 1 {
			return fmt.Errorf("the samples are %+v", samples)
		}
		u = samples[0]
		return nil
	})
	assert.True(t, u.UID == on.UID && u.Run == s.Run && !u.At.IsZero() && u.CPU >= 0, "Usage: got %+v, want UID %s, run %s and a time", u, on.UID, s.Run)
	assert.True(t, u.MemoryBytes > 0 && u.MemoryBytes <= on.MemoryBytes,
		"the usage is %d bytes of memory, want more than 0 and at most the %d of the spec", u.MemoryBytes, on.MemoryBytes)
	samples := usageOf(t, e.driver)
	assert.True(t, len(samples) == 0, "Usage without UIDs: got %+v", samples)
}

// testUsageUnderLoad checks that the CPU counter of a run grows with the guest's CPU use.
func testUsageUnderLoad(t *testing.T, e *env) {
	streams.Require(t, e.OutOfBand.BurnCPU != nil, "OutOfBand.BurnCPU")
	spec := e.newSpec(t, "busy")
	s := e.ensureState(t, spec, driver.StateRunning)
	sample := func() (u driver.Usage) {
		assert.Eventually(t, "a sample", func(testing.TB) error { // the server of a busy host may not answer in time
			samples, err := e.driver.Usage(t.Context(), spec.UID)
			if err == nil && len(samples) != 1 {
				err = fmt.Errorf("the samples are %+v", samples)
			}
			if err == nil {
				u = samples[0]
			}
			return err
		})
		assert.Require(t, u.Run == s.Run, "Usage: got %+v, want a sample of the run %s", u, s.Run)
		return u
	}
	e.OutOfBand.BurnCPU(t, s)
	first := sample()
	last := first
	const growth = 100 * time.Millisecond
	assert.Eventually(t, "the CPU counter grows", func(testing.TB) error {
		next := sample()
		assert.Require(t, next.CPU >= last.CPU && !next.At.Before(last.At), "the counter went back from %v at %v to %v at %v", last.CPU, last.At, next.CPU, next.At)
		last = next
		grown := last.CPU - first.CPU
		return assert.ErrorUnless(grown >= growth, "the counter grew by %v in %v", grown, last.At.Sub(first.At))
	})
}
