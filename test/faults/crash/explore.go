// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// keepEnv names a folder in which the logs of runs with violations are left.
const keepEnv = "DROVER_FAULTS_DIR"

// pairSeed selects the pairs that are run.
const pairSeed = 15

// Settings describe a kind of fault: crashes of controllers of some engines, or what else
// happens at their points.
type Settings struct {
	Name    string
	Engines []lab.Engine
	// Parallel is how many runs take place at a time. They wait most of the time.
	Parallel int
	// Bounds say how much is explored in a size. Without a short one the kind is left out of
	// every test run.
	Bounds map[lab.Size]Bounds
	// Faults are what happens in place of crashes; nil means crashes.
	Faults Faults
}

// Bounds are limits; zero means none.
type Bounds struct {
	// Workloads are the names of those that are run.
	Workloads []string
	// Cases is how many cases of one crash are run of each workload.
	Cases int
	// Pairs is how many cases of two crashes are run in all.
	Pairs int
}

// Kind returns the kind of fault.
func Kind(s Settings) lab.Kind {
	newRunner := func(l *lab.Lab, size lab.Size) *runner {
		return &runner{Lab: l, engines: s.Engines, parallel: s.Parallel, bounds: s.Bounds[size], faults: s.Faults, keep: os.Getenv(keepEnv)}
	}
	return lab.Kind{
		Name: s.Name, Sizes: slices.Collect(maps.Keys(s.Bounds)),
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return newRunner(l, size).explore(ctx)
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return newRunner(l, lab.SizeFull).replay(ctx, name)
		},
	}
}

// tally is what was explored so far.
type tally struct {
	mu        sync.Mutex
	result    lab.Result
	states    map[string]*lab.State
	cases     []testCase
	reached   map[string]bool // by workload and point
	unreached []string
	known     int // points that the learning runs found
	pairs     []testCase
	pairsRun  int
}

func (r *runner) explore(ctx context.Context) (lab.Result, error) {
	begin := time.Now()
	t := &tally{states: map[string]*lab.State{}, reached: map[string]bool{}}
	learning := r.learningCases()
	err := r.runAll(ctx, learning, func(ctx context.Context, c testCase) error { return r.learn(ctx, c, t) })
	if err == nil {
		err = r.runAll(ctx, t.cases, func(ctx context.Context, c testCase) error { return r.runOnce(ctx, c, t) })
	}
	pairs := samplePairs(t.pairs, r.bounds.Pairs)
	if err == nil {
		err = r.runAll(ctx, pairs, func(ctx context.Context, c testCase) error { return r.runPair(ctx, c, t) })
	}
	t.result.Points, t.result.Took = len(t.reached), time.Since(begin)
	t.result.Notes = append(t.result.Notes,
		fmt.Sprintf("%d of %d points in %d workloads, %d of them not reached again", len(t.reached), t.known, len(learning), len(t.unreached)),
		fmt.Sprintf("%d of %d pairs", t.pairsRun, len(t.pairs)))
	for _, name := range t.unreached {
		t.result.Notes = append(t.result.Notes, "not reached: "+name)
	}
	return t.result, err
}

// learningCases returns the cases without crashes.
func (r *runner) learningCases() []testCase {
	var all []testCase
	for _, e := range r.engines {
		for _, w := range workloads {
			wanted := len(r.bounds.Workloads) == 0 || slices.Contains(r.bounds.Workloads, w.name)
			if _, isPair := e.(Pair); wanted && isPair == w.moves && e.Runs(w.name) && w.isPossible(r.Lab) {
				all = append(all, testCase{workload: w.name + "/" + e.Name(), recovery: lab.ByRestart})
			}
		}
	}
	return all
}

// runAll runs cases, several at a time, until one cannot be run.
func (r *runner) runAll(ctx context.Context, cases []testCase, run func(context.Context, testCase) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan testCase)
	var workers sync.WaitGroup
	for range r.parallel {
		workers.Go(func() {
			for c := range next {
				if err := run(ctx, c); err != nil {
					cancel(err)
				}
			}
		})
	}
	for _, c := range cases {
		if ctx.Err() == nil {
			next <- c
		}
	}
	close(next)
	workers.Wait()
	return context.Cause(ctx)
}

// learn runs a workload without crashes, and adds the cases of its points.
func (r *runner) learn(ctx context.Context, c testCase, t *tally) error {
	o, err := r.run(ctx, c, nil)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.AddRun(o.violations)
	t.states[c.workload] = &o.state
	if len(o.learned) == 0 {
		return fmt.Errorf("%s: nothing was learned", c)
	}
	points := o.learned[0]
	t.known += len(points)
	t.cases = append(t.cases, r.casesOf(c.workload, points)...)
	return nil
}

// casesOf returns the cases of one fault: all, or as many as the bounds allow. Those of
// crashes are spread over the points that change something.
func (r *runner) casesOf(workload string, points []string) []testCase {
	faults := r.faults
	switch {
	case faults == nil && r.bounds.Cases == 0:
		faults = crashes
	case faults == nil:
		faults = crashesOfMutations
	}
	points = slices.DeleteFunc(slices.Clone(points), func(p string) bool { return len(faults(p)) == 0 })
	if r.bounds.Cases == 0 {
		return allCases(workload, points, faults)
	}
	return someCases(workload, points, faults, r.bounds.Cases)
}

var recoveries = []lab.Recovery{lab.ByRestart, lab.ByStandby}

// someCases returns as many cases, spread over all points, with faults and recovery in turn.
// There is no second one of a point before each point has one.
func someCases(workload string, points []string, faults Faults, limit int) []testCase {
	var some []testCase
	limit = min(limit, len(allCases(workload, points, faults))/len(recoveries))
	for n, count := 0, min(limit, len(points)); len(some) < limit; n++ {
		p := points[n%count*len(points)/count]
		if of, round := faults(p), n/count; round < len(of) {
			some = append(some, testCase{workload, recoveries[n/2%2], []crashPoint{crashPoint(p + "/" + of[(n%count+round)%len(of)])}})
		}
	}
	return some
}

func allCases(workload string, points []string, faults Faults) []testCase {
	var all []testCase
	for _, p := range points {
		for _, fault := range faults(p) {
			for _, recovery := range recoveries {
				all = append(all, testCase{workload, recovery, []crashPoint{crashPoint(p + "/" + fault)}})
			}
		}
	}
	return all
}

// runOnce runs a case of one crash, twice if its point was not reached.
func (r *runner) runOnce(ctx context.Context, c testCase, t *tally) error {
	var o outcome
	for range 2 {
		var err error
		if o, err = r.run(ctx, c, t.states[c.workload]); err != nil {
			return err
		}
		if o.crashed > 0 || len(o.violations) > 0 {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.AddRun(o.violations)
	point, _, _ := strings.Cut(string(c.crashes[0]), "/")
	if o.crashed > 0 {
		t.reached[c.workload+"/"+point] = true
		if len(o.learned) > 1 && r.faults == nil {
			t.addPairs(c, o.learned[1])
		}
	} else {
		t.unreached = append(t.unreached, c.String())
	}
	return nil
}

// addPairs adds the cases in which the process that recovers ends too.
func (t *tally) addPairs(c testCase, points []string) {
	for _, p := range points {
		for _, moment := range crashes(p) {
			t.pairs = append(t.pairs, testCase{c.workload, c.recovery, []crashPoint{c.crashes[0], crashPoint(p + "/" + moment)}})
		}
	}
}

// samplePairs selects pairs, the same ones of the same pairs.
func samplePairs(all []testCase, limit int) []testCase {
	slices.SortFunc(all, func(a, b testCase) int { return strings.Compare(a.String(), b.String()) })
	random := rand.New(rand.NewPCG(pairSeed, pairSeed)) //nolint:gosec // Chance, not secrecy.
	random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), limit)]
}

// runPair runs a case of two crashes. It counts if both have occurred.
func (r *runner) runPair(ctx context.Context, c testCase, t *tally) error {
	o, err := r.run(ctx, c, t.states[c.workload])
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.AddRun(o.violations)
	if o.crashed > 1 {
		t.pairsRun++
	}
	return nil
}

// replay runs one case, after the run without crashes that it is compared with.
func (r *runner) replay(ctx context.Context, name string) (lab.Result, error) {
	begin := time.Now()
	c, err := parseCase(name)
	if err != nil {
		return lab.Result{}, err
	}
	t := &tally{states: map[string]*lab.State{}, reached: map[string]bool{}}
	if err := r.learn(ctx, testCase{workload: c.workload, recovery: lab.ByRestart}, t); err != nil {
		return t.result, err
	}
	o, err := r.run(ctx, c, t.states[c.workload])
	t.result.AddRun(o.violations)
	t.result.Points, t.result.Took = o.crashed, time.Since(begin)
	if err == nil && o.crashed < len(c.crashes) {
		err = errors.New("the point was not reached")
	}
	if len(o.violations) > 0 {
		t.result.Notes = append(t.result.Notes, o.log)
	}
	return t.result, err
}

// findParallel is how many runs of FindViolation take place at a time.
const findParallel = 16

// errFound ends FindViolation.
var errFound = errors.New("a violation was found")

// FindViolation explores the faults of some workloads, or crashes where there are none, until
// there is a violation, which it returns. It is for controllers that have a bug.
func FindViolation(ctx context.Context, l *lab.Lab, engine lab.Engine, faults Faults, names ...string) (lab.Result, error) {
	if faults == nil {
		faults = crashesOfMutations
	}
	r := &runner{Lab: l, engines: []lab.Engine{engine}, parallel: findParallel, bounds: Bounds{Workloads: names}, faults: faults}
	t := &tally{states: map[string]*lab.State{}, reached: map[string]bool{}}
	err := r.runAll(ctx, r.learningCases(), func(ctx context.Context, c testCase) error { return r.learn(ctx, c, t) })
	if err == nil && len(t.result.Violations) == 0 {
		err = r.runAll(ctx, t.cases, func(ctx context.Context, c testCase) error {
			err := r.runOnce(ctx, c, t)
			t.mu.Lock()
			defer t.mu.Unlock()
			if err == nil && len(t.result.Violations) > 0 {
				return errFound
			}
			return err
		})
	}
	t.result.Points = len(t.reached)
	if errors.Is(err, errFound) {
		err = nil
	}
	return t.result, err
}
