// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
)

// Settings describe a kind of fault: crashes of controllers of some engines, or what else
// happens at their points.
type Settings struct {
	Name    string
	Engines []lab.Engine
	// Parallel is how many runs take place at a time. They wait most of the time.
	Parallel int
	// Bounds say how much is explored in a size. Without a short one the kind is left out of
	// the gate.
	Bounds map[lab.Size]Bounds
	// Faults are what happens in place of crashes; nil means crashes.
	Faults Faults
	// InTurn has the cases of a fault take the two recoveries in turn, rather than each twice.
	InTurn bool
}

// Bounds are limits; zero means none.
type Bounds struct {
	// Workloads are the names of those that are run.
	Workloads []string
	// Cases is how many cases of one crash are run of each workload.
	Cases int
	// EachPoint has one case for each point, in place of Cases.
	EachPoint bool
	// Pairs is how many cases of two crashes are run in all.
	Pairs int
}

// Kind returns the kind of fault.
func Kind(s Settings) lab.Kind {
	newRunner := func(l *lab.Lab, size lab.Size) *runner {
		return &runner{Lab: l, engines: s.Engines, parallel: s.Parallel, bounds: s.Bounds[size], faults: s.Faults, inTurn: s.InTurn, keep: os.Getenv(lab.KeepEnv)}
	}
	return lab.Kind{
		Name: s.Name, Sizes: slices.Collect(maps.Keys(s.Bounds)),
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return newRunner(l, size).explore(ctx)
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return newRunner(l, lab.SizeExhaustive).replay(ctx, name)
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
	needless  []string // cases in which there was nothing to disturb
	occurred  int      // cases of one fault that was reached
	all       int      // cases of one fault that there are
	known     int      // points that the learning runs found
	pairs     []testCase
	pairsRun  int
}

func (r *runner) explore(ctx context.Context) (lab.Result, error) {
	begin := time.Now()
	t := &tally{states: map[string]*lab.State{}, reached: map[string]bool{}}
	learning := r.learningCases()
	err := lab.ForEach(ctx, r.parallel, learning, func(ctx context.Context, c testCase) error { return r.learn(ctx, c, t) })
	if err == nil {
		err = lab.ForEach(ctx, r.parallel, t.cases, func(ctx context.Context, c testCase) error { return r.runOnce(ctx, c, t) })
	}
	slices.SortFunc(t.pairs, func(a, b testCase) int { return strings.Compare(a.String(), b.String()) })
	pairs := lab.Sample(t.pairs, r.bounds.Pairs)
	if err == nil {
		err = lab.ForEach(ctx, r.parallel, pairs, func(ctx context.Context, c testCase) error { return r.runPair(ctx, c, t) })
	}
	t.result.Took = time.Since(begin)
	t.count(len(learning), len(pairs))
	return t.result, err
}

// count adds the counts of what was explored to the result.
func (t *tally) count(workloads, pairs int) {
	t.result.Points = len(t.reached)
	t.result.Cases, t.result.Occurred = t.occurred+len(t.unreached)+pairs, t.occurred+t.pairsRun
	t.result.Notes = append(t.result.Notes,
		fmt.Sprintf("%d of %d points in %d workloads, %d cases not reached again", len(t.reached), t.known, workloads, len(t.unreached)),
		fmt.Sprintf("%d cases of one fault in all, about %s at this speed", t.all, estimate(t.all, t.result)),
		fmt.Sprintf("%d pairs of %d tried and %d known", t.pairsRun, pairs, len(t.pairs)))
	if len(t.needless) > 0 {
		t.result.Notes = append(t.result.Notes, fmt.Sprintf("%d cases in which there was no server to change", len(t.needless)))
	}
	for _, name := range t.unreached {
		t.result.Notes = append(t.result.Notes, "not reached: "+name)
	}
}

// estimate returns how long so many runs would take.
func estimate(runs int, r lab.Result) time.Duration {
	return (r.Took * time.Duration(runs) / time.Duration(max(1, r.Runs))).Round(time.Minute)
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
	points := r.pointsWithFaults(o.learned[0])
	t.known += len(points)
	t.cases = append(t.cases, r.casesOf(c.workload, points)...)
	t.all += len(r.allCasesOf(c.workload, points))
	return nil
}

// casesOf returns the cases of one fault: all, or as many as the bounds allow. Those of
// crashes are spread over the points that change something.
func (r *runner) casesOf(workload string, points []string) []testCase {
	if r.bounds.Cases == 0 && !r.bounds.EachPoint {
		return r.allCasesOf(workload, points)
	}
	faults := r.faults
	if faults == nil {
		faults = crashesOfMutations
		points = withFaults(points, faults)
	}
	limit := r.bounds.Cases
	if r.bounds.EachPoint {
		limit = len(points)
	}
	return someCases(workload, points, faults, limit)
}

// pointsWithFaults returns the points that may have a fault.
func (r *runner) pointsWithFaults(points []string) []string {
	if r.faults == nil {
		return withFaults(points, crashes)
	}
	return withFaults(points, r.faults)
}

func withFaults(points []string, faults Faults) []string {
	return slices.DeleteFunc(slices.Clone(points), func(p string) bool { return len(faults(p)) == 0 })
}

// allCasesOf returns all cases of one fault.
func (r *runner) allCasesOf(workload string, points []string) []testCase {
	faults := r.faults
	if faults == nil {
		faults = crashes
	}
	return allCases(workload, points, faults, r.inTurn)
}

// recoveriesOf returns who may go on after a fault.
func recoveriesOf(fault string) []lab.Recovery {
	if fault == held+string(outside.Superseded) {
		return []lab.Recovery{lab.ByStandby}
	}
	return []lab.Recovery{lab.ByRestart, lab.ByStandby}
}

// someCases returns as many cases as the bounds allow, spread over all points, with faults and
// recovery in turn. There is no second one of a point before each point has one. Workloads begin
// with different faults, so that a few cases of each show all.
func someCases(workload string, points []string, faults Faults, limit int) []testCase {
	var some []testCase
	limit = min(limit, len(allCases(workload, points, faults, true)))
	for n, count := 0, min(limit, len(points)); len(some) < limit; n++ {
		p := points[n%count*len(points)/count]
		if of, round := possible(workload, faults(p)), n/count; round < len(of) {
			fault := of[(n%count+round+int(hash(workload)%uint32(len(of))))%len(of)] //nolint:gosec // few
			some = append(some, newCase(workload, p, fault, n/2))
		}
	}
	return some
}

// possible returns the faults that a workload may have at a point. No other engine may be there
// when a VirtualMachine is created, which would be bound to it.
func possible(workload string, faults []string) []string {
	return slices.DeleteFunc(slices.Clone(faults), func(fault string) bool {
		return fault == held+string(outside.Exchanged) && strings.HasPrefix(workload, "recreate/")
	})
}

// newCase returns a case with the nth recovery.
func newCase(workload, point, fault string, n int) testCase {
	recoveries := recoveriesOf(fault)
	return testCase{workload, recoveries[n%len(recoveries)], []crashPoint{crashPoint(point + "/" + fault)}}
}

// allCases returns the cases of all faults of all points, with the recoveries in turn or each
// with all.
func allCases(workload string, points []string, faults Faults, inTurn bool) []testCase {
	var all []testCase
	for n, p := range points {
		for m, fault := range possible(workload, faults(p)) {
			if inTurn {
				all = append(all, newCase(workload, p, fault, n+m))
				continue
			}
			for k := range recoveriesOf(fault) {
				all = append(all, newCase(workload, p, fault, k))
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
		if o.crashed > 0 || o.needless || len(o.violations) > 0 {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.result.AddRun(o.violations)
	point, _, _ := strings.Cut(string(c.crashes[0]), "/")
	switch {
	case o.crashed > 0:
		t.occurred++
		t.reached[c.workload+"/"+point] = true
		if len(o.learned) > 1 && r.faults == nil {
			t.addPairs(c, o.learned[1])
		}
	case o.needless:
		t.needless = append(t.needless, c.String())
	default:
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
const findParallel = 8

// errFound ends FindViolation.
var errFound = errors.New("a violation was found")

// FindViolation explores the faults of some workloads, or crashes where there are none, until
// there is a violation, which it returns. It is for controllers that have a bug.
func FindViolation(ctx context.Context, l *lab.Lab, engine lab.Engine, faults Faults, names ...string) (lab.Result, error) {
	if faults == nil {
		faults = crashesOfMutations
	}
	r := &runner{Lab: l, engines: []lab.Engine{engine}, parallel: findParallel, bounds: Bounds{Workloads: names}, faults: faults, finds: true}
	t := &tally{states: map[string]*lab.State{}, reached: map[string]bool{}}
	err := lab.ForEach(ctx, r.parallel, r.learningCases(), func(ctx context.Context, c testCase) error { return r.learn(ctx, c, t) })
	if err == nil && len(t.result.Violations) == 0 {
		err = lab.ForEach(ctx, r.parallel, t.cases, func(ctx context.Context, c testCase) error {
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
