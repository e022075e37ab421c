// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"slices"
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
)

func TestRate(t *testing.T) {
	at := func(seconds int) time.Time { return t0.Add(time.Duration(seconds) * time.Second) }
	sample := func(run string, seconds int, cpu time.Duration, memory int64) driver.Usage {
		return driver.Usage{UID: "a", Run: run, CPU: cpu, MemoryBytes: memory, At: at(seconds)}
	}
	server := func(run string, started time.Time) driver.Server {
		return driver.Server{UID: "a", Run: run, State: driver.StateRunning, StartedAt: started, Applied: driver.Resources{MemoryBytes: 1000}}
	}
	for name, tc := range map[string]struct {
		server   driver.Server
		samples  []driver.Usage
		want     *Rates
		reported bool // whether the last sample was reported
	}{
		"first of a fresh run counts from its start": {
			server("1", at(0)), []driver.Usage{sample("1", 10, 5*time.Second, 250)}, &Rates{50, 25}, true,
		},
		"first of an old run says nothing": {
			server("1", at(-1000)), []driver.Usage{sample("1", 10, 5*time.Second, 250)}, nil, false,
		},
		"first of a run of unknown start says nothing": {
			server("1", time.Time{}), []driver.Usage{sample("1", 10, 5*time.Second, 250)}, nil, false,
		},
		"two of an old run": {
			server("1", at(-1000)), []driver.Usage{sample("1", 10, 5*time.Second, 250), sample("1", 20, 25*time.Second, 500)}, &Rates{200, 50}, true,
		},
		"a move of less than a point is not reported": {
			server("1", at(0)), []driver.Usage{sample("1", 10, 1*time.Second, 100), sample("1", 20, 2050*time.Millisecond, 109)}, &Rates{10.5, 10.9}, false,
		},
		"small moves add up": {
			server("1", at(0)),
			[]driver.Usage{sample("1", 10, 0, 100), sample("1", 20, 0, 106), sample("1", 30, 0, 112)},
			&Rates{0, 11.2}, true,
		},
		"two at one time": {
			server("1", at(0)), []driver.Usage{sample("1", 10, 5*time.Second, 250), sample("1", 10, 9*time.Second, 900)}, &Rates{50, 25}, false,
		},
		"memory of unknown size": {
			driver.Server{UID: "a", Run: "1", State: driver.StateRunning, StartedAt: at(0)},
			[]driver.Usage{sample("1", 10, 5*time.Second, 250)},
			&Rates{50, 0}, true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := &entry{servers: []driver.Server{tc.server}}
			reported := false
			for _, u := range tc.samples {
				reported = e.updateRates(u, time.Minute)
			}
			assert.True(t, reported == tc.reported && (e.rates == nil) == (tc.want == nil) && (e.rates == nil || *e.rates == *tc.want),
				"rates %+v, reported %t: want %+v, %t", e.rates, reported, tc.want, tc.reported)
		})
	}
}

// TestSamplesOfAnotherRunAreDropped checks that samples of an earlier run are
// ignored.
func TestSamplesOfAnotherRunAreDropped(t *testing.T) {
	g := newListedFixture(t)
	s := g.ensureServer()
	late := g.clock.Now().Add(10 * time.Second)
	for name, u := range map[string]driver.Usage{
		"another run": {UID: "a", Run: "past", CPU: time.Second, At: late},
		"no server":   {UID: "b", Run: s.Run, CPU: time.Second, At: late},
	} {
		changes := g.inv.cache.recordUsage([]driver.Usage{u}, 2*g.inv.UsagePeriod)
		assert.True(t, len(changes) == 0 && g.inv.Get("a").Rates == nil, "%s: reported %+v, rates %+v", name, changes, g.inv.Get("a").Rates)
	}
}

// waitForRates advances the clock until a sample was taken after all earlier
// changes.
func (g *fixture) waitForRates(condition string, ok func(*Rates) bool) {
	g.t.Helper()
	g.waitUntil("it waits", g.clock.HasWaiters)
	g.waitUntil(condition, func() bool {
		g.clock.Step(30 * time.Second)
		return ok(g.inv.Get("a").Rates)
	})
}

func TestUsageFollowsLoadAndRun(t *testing.T) {
	g := newListedFixture(t)
	g.ensureServer()
	g.editServer("a", func(r *fake.Record) { r.Load = 0.5 })
	g.waitForRates("one CPU of two, a quarter of the memory", func(r *Rates) bool {
		return r != nil && r.CPU > 99 && r.CPU < 101 && r.Memory == 25
	})
	g.takeChanges()
	g.editServer("a", func(r *fake.Record) { r.Load = 1 })
	g.waitForRates("both CPUs", func(r *Rates) bool { return r != nil && r.CPU > 199 && r.CPU < 201 })
	g.waitUntil("the move is reported", func() bool {
		return slices.ContainsFunc(g.takeChanges(), func(c Change) bool { return c.Routine && c.UID == "a" && c.VM.Name == "vm-a" })
	})

	g.engine.withLock(func() {
		g.engine.usage = func(func() ([]driver.Usage, error)) ([]driver.Usage, error) { return nil, errors.New("not now") }
	})
	before, reads := *g.inv.Get("a").Rates, readLocked(g.engine, &g.engine.usages)
	g.waitForRates("usage was read twice more", func(*Rates) bool { return readLocked(g.engine, &g.engine.usages) >= reads+2 })
	r := g.inv.Get("a").Rates
	assert.True(t, r != nil && *r == before, "after failures the rates are %+v, want them as they were", r)

	stop := newSpec()
	stop.Power, stop.StopBy = driver.PowerOff, g.clock.Now()
	_, err := g.inv.Ensure(t.Context(), stop)
	assert.NoError(t, err)
	r = g.inv.Get("a").Rates
	assert.True(t, r == nil, "off it uses %+v", r)
}

func TestNoSampleWithoutRunningServers(t *testing.T) {
	g := newListedFixture(t)
	g.editServer("a", func(r *fake.Record) { r.ClusterID, r.State = "cluster", driver.StateStopped })
	g.waitForAnswer("a", Present)
	lists := g.engine.countLists()
	g.waitUntil("two periods have passed", func() bool {
		g.clock.Step(30 * time.Second)
		return g.engine.countLists() >= lists+2
	})
	n := readLocked(g.engine, &g.engine.usages)
	assert.True(t, n == 0, "usage was read %d times", n)
}
