// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
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

// Settings describe a kind of fault: crashes of controllers of some engines.
type Settings struct {
	Name    string
	Engines []lab.Engine
	// Parallel is how many runs take place at a time. They wait most of the time.
	Parallel int
	// Bounds say how much is explored in a size.
	Bounds map[lab.Size]Bounds
	// Answers is set for bad answers of the API server in place of crashes.
	Answers bool
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
		return &runner{Lab: l, engines: s.Engines, parallel: s.Parallel, bounds: s.Bounds[size], answers: s.Answers, keep: os.Getenv(keepEnv)}
	}
	return lab.Kind{
		Name: s.Name,
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
			if wanted && e.Runs(w.name) && w.isPossible(r.Lab) {
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

// casesOf returns the cases of one fault: all, or as many as the bounds allow, which are
// spread over the points that change something.
func (r *runner) casesOf(workload string, points []string) []testCase {
	if r.answers {
		points = selectPoints(points, isRequest)
		return r.someCases(workload, points, answers)
	}
	if r.bounds.Cases > 0 {
		points = selectPoints(points, isMutation)
	}
	return r.someCases(workload, points, moments)
}

func selectPoints(points []string, isWanted func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(points), func(p string) bool { return !isWanted(p) })
}

var (
	moments    = []string{before, after}
	recoveries = []lab.Recovery{lab.ByRestart, lab.ByStandby}
)

// someCases returns the cases of points, or as many as the bounds allow, which are spread
// over all, with faults and recovery in turn.
func (r *runner) someCases(workload string, points, faults []string) []testCase {
	limit := r.bounds.Cases
	if limit == 0 {
		return allCases(workload, points, faults)
	}
	var some []testCase
	limit = min(limit, len(points))
	for n := range limit {
		p := points[n*len(points)/limit]
		some = append(some, testCase{workload, recoveries[n/2%2], []crashPoint{crashPoint(p + "/" + faults[n%len(faults)])}})
	}
	return some
}

func allCases(workload string, points, faults []string) []testCase {
	var all []testCase
	for _, p := range points {
		for _, fault := range faults {
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
		if len(o.learned) > 1 && !r.answers {
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
		for _, moment := range moments {
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

// FindViolation explores the crashes of some workloads until there is a violation, which it
// returns. It is for controllers that have a bug.
func FindViolation(ctx context.Context, l *lab.Lab, engine lab.Engine, names ...string) (lab.Result, error) {
	r := &runner{Lab: l, engines: []lab.Engine{engine}, parallel: findParallel, bounds: Bounds{Workloads: names}}
	t := &tally{states: map[string]*lab.State{}, reached: map[string]bool{}}
	err := r.runAll(ctx, r.learningCases(), func(ctx context.Context, c testCase) error { return r.learn(ctx, c, t) })
	cases := slices.DeleteFunc(t.cases, func(c testCase) bool {
		point, _, _ := strings.Cut(string(c.crashes[0]), "/")
		return !isMutation(point)
	})
	if err == nil && len(t.result.Violations) == 0 {
		err = r.runAll(ctx, cases, func(ctx context.Context, c testCase) error {
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
