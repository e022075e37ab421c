// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apifaults has faults of what controllers see of the API: a single event of a watch
// that is late or missing, lists from the past, and a clock of the API server that steps.
//
// Start with Kind in explore.go. A fault occurs at an event of a watch, which a run without
// faults has shown: inject.go finds that event in the proxy of a world, and stream.go has
// the watches. watch.go, past.go and clock.go have the faults.
package apifaults

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/test/faults/crash"
	"cloudnative.tw/drover/test/faults/lab"
)

// Settings describe a kind of fault.
type Settings struct {
	Name    string
	Faults  Faults
	Engines []lab.Engine
	// Parallel is how many runs take place at a time. They wait most of the time.
	Parallel int
	// Bounds say how much is explored in a size.
	Bounds map[lab.Size]crash.Bounds
}

// Kind returns the kind of fault.
func Kind(s Settings) lab.Kind {
	return lab.Kind{
		Name: s.Name, Sizes: slices.Collect(maps.Keys(s.Bounds)),
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return newExplorer(s, l, s.Bounds[size]).explore(ctx)
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return newExplorer(s, l, crash.Bounds{}).replay(ctx, name)
		},
	}
}

// explorer explores a kind, and has what it has found so far.
type explorer struct {
	Settings
	lab    *lab.Lab
	bounds crash.Bounds
	// runCases runs cases.
	runCases func(context.Context, []testCase) error

	mu      sync.Mutex
	result  lab.Result
	states  map[string]*lab.State // of the runs without faults, by workload
	cases   []testCase
	known   int
	reached map[testCase]bool
	log     string // of the last run that broke a rule
}

func newExplorer(s Settings, l *lab.Lab, b crash.Bounds) *explorer {
	e := &explorer{Settings: s, lab: l, bounds: b, states: map[string]*lab.State{}, reached: map[testCase]bool{}}
	e.runCases = func(ctx context.Context, cases []testCase) error {
		return lab.ForEach(ctx, e.Parallel, cases, e.runCase)
	}
	return e
}

func (e *explorer) explore(ctx context.Context) (lab.Result, error) {
	begin := time.Now()
	workloads := crash.Workloads(e.lab, e.Engines, e.bounds.Workloads)
	err := lab.ForEach(ctx, e.Parallel, workloads, e.learn)
	cases := e.cases
	if err == nil {
		err = e.runCases(ctx, cases)
	}
	e.result.Points, e.result.Took = len(e.reached), time.Since(begin)
	e.result.Cases, e.result.Occurred = len(cases), len(e.reached)
	e.result.Notes = append(e.result.Notes, fmt.Sprintf("%d cases of %d in %d workloads, %d of them not reached again",
		len(cases), e.known, len(workloads), len(cases)-len(e.reached)))
	return e.result, err
}

// learn runs a workload without faults, and adds cases of the events that it shows.
func (e *explorer) learn(ctx context.Context, workload string) error {
	c := testCase{workload: workload, recovery: lab.ByRestart}
	i := newInjector(c, noFault{})
	state, err := e.run(ctx, c, i, nil)
	if err != nil {
		return err
	}
	all := e.Faults.cases(workload, i.learnedEvents())
	e.mu.Lock()
	defer e.mu.Unlock()
	e.states[workload] = &state
	e.known += len(all)
	if e.bounds.Cases > 0 {
		all = lab.Sample(all, e.bounds.Cases)
	}
	e.cases = append(e.cases, all...)
	return nil
}

// runCase runs a case, twice if its event did not come.
func (e *explorer) runCase(ctx context.Context, c testCase) error {
	for range 2 {
		if occurred, err := e.tryCase(ctx, c, e.Faults.newFault(c.fault)); occurred || err != nil {
			return err
		}
	}
	return nil
}

// tryCase runs a case with a fault, and reports whether that occurred.
func (e *explorer) tryCase(ctx context.Context, c testCase, f fault) (occurred bool, err error) {
	i := newInjector(c, f)
	i.ofLeader = e.Faults.ofLeader
	e.mu.Lock()
	want := e.states[c.workload]
	e.mu.Unlock()
	if _, err := e.run(ctx, c, i, want); err != nil || !i.hasOccurred() {
		return false, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reached[c] = true
	return true, nil
}

// run runs a case once.
func (e *explorer) run(ctx context.Context, c testCase, i *injector, want *lab.State) (lab.State, error) {
	play := crash.Play{
		Engines: e.Engines, Workload: c.workload, Recovery: c.recovery, Name: c.String(), Want: want,
		Hooks: crash.Hooks{Prepare: func(w *lab.World) { w.Intercept(i.roundTrip) }, Act: i.act, Await: i.await},
	}
	state, broken, log, err := play.Run(ctx, e.lab)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result.AddRun(broken)
	if len(broken) > 0 {
		e.log = log
	}
	return state, err
}

// replay runs one case, after the run without faults that it is compared with.
func (e *explorer) replay(ctx context.Context, name string) (lab.Result, error) {
	begin := time.Now()
	c, err := parseCase(name)
	if err == nil {
		err = e.learn(ctx, c.workload)
	}
	if err == nil {
		err = e.runCases(ctx, []testCase{c})
	}
	e.result.Points, e.result.Took = len(e.reached), time.Since(begin)
	if len(e.result.Violations) > 0 {
		e.result.Notes = append(e.result.Notes, e.log)
	}
	if err == nil && len(e.reached) == 0 {
		err = errors.New("the event did not come")
	}
	return e.result, err
}

// testCase is a fault at an event of a workload.
type testCase struct {
	// workload is "<workload>/<engine>".
	workload string
	recovery lab.Recovery
	// event is "<type> <resource> <name>#<ordinal>".
	event, fault string
}

// String returns the case's name, by which it can be replayed:
// create/fake/standby/MODIFIED virtualmachines vm-1#2/late.
func (c testCase) String() string {
	return strings.Join([]string{c.workload, string(c.recovery), c.event, c.fault}, "/")
}

func parseCase(name string) (testCase, error) {
	parts := strings.Split(name, "/")
	if len(parts) != 5 {
		return testCase{}, fmt.Errorf("%q is no case: it must be <workload>/<engine>/<recovery>/<event>/<fault>", name)
	}
	return testCase{workload: parts[0] + "/" + parts[1], recovery: lab.Recovery(parts[2]), event: parts[3], fault: parts[4]}, nil
}
