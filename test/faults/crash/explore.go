// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cloudnative.tw/drover/internal/driver/pod"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
)

// Settings describe a kind of fault: crashes of controllers with some engines, or other
// faults at their crash points.
type Settings struct {
	Name    string
	Engines []lab.Engine
	// Parallel is how many runs take place at a time. They wait most of the time.
	Parallel int
	// Workloads are the names of the workloads that are run; none means all. The gate runs only
	// gateWorkloads if some are named.
	Workloads []string
	// Only is the name of the only case that is run, in each size; empty means all cases.
	Only string
	// Short and Default are how many cases of one fault are run for each workload in these sizes.
	// The gate omits the kind if Short is 0. Larger sizes run all cases.
	Short, Default int
	// Pairs is how many cases of two crashes are run in total.
	Pairs map[lab.Size]int
	// Faults returns the faults of a point; nil means crashes.
	Faults Faults
	// Source, if it is not nil, replaces Faults: it has both the points and the faults.
	Source Source
	// InTurn makes cases use the two recoveries alternately, rather than run each case with both.
	// If Faults is set too, SizeFull has one case for each point, and SizeExhaustive has all.
	InTurn bool
}

// gateWorkloads are the workloads in the gate of kinds that name their workloads.
var gateWorkloads = []string{"restart", "delete"}

// sizes returns the sizes in which the kind is explored.
func (s Settings) sizes() []lab.Size {
	all := []lab.Size{lab.SizeDefault, lab.SizeFull}
	if s.Short > 0 {
		all = append(all, lab.SizeShort)
	}
	if s.InTurn && s.Faults != nil {
		all = append(all, lab.SizeExhaustive)
	}
	return all
}

// bounds returns the limits of a size.
func (s Settings) bounds(size lab.Size) bounds {
	b := bounds{workloads: s.Workloads, pairs: s.Pairs[size]}
	switch size {
	case lab.SizeShort:
		b.cases = s.Short
		if len(s.Workloads) > 0 {
			b.workloads = gateWorkloads
		}
	case lab.SizeDefault:
		b.cases = s.Default
	case lab.SizeFull:
		b.eachPoint = s.InTurn && s.Faults != nil
	case lab.SizeExhaustive, lab.SizeSoak:
	}
	return b
}

// bounds limits the exploration. The zero value means unlimited.
type bounds struct {
	workloads []string
	// cases is how many cases of one fault are run for each workload.
	cases int
	// eachPoint replaces cases: there is one case for each point.
	eachPoint bool
	// pairs is how many cases of two crashes are run in total.
	pairs int
}

// Kind returns the kind of fault.
func Kind(s Settings) lab.Kind {
	newRunner := func(l *lab.Lab, b bounds) *runner {
		return &runner{Lab: l, engines: s.Engines, parallel: s.Parallel, bounds: b, faults: s.Faults, source: s.Source, inTurn: s.InTurn, keep: os.Getenv(lab.KeepEnv)}
	}
	return lab.Kind{
		Name: s.Name, Sizes: s.sizes(), NeedsPods: slices.ContainsFunc(s.Engines, func(e lab.Engine) bool { return e.Name() == pod.Name }),
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			if s.Only != "" {
				return newRunner(l, bounds{}).replay(ctx, s.Only)
			}
			return newRunner(l, s.bounds(size)).explore(ctx)
		},
		Replay: func(ctx context.Context, l *lab.Lab, name string) (lab.Result, error) {
			return newRunner(l, bounds{}).replay(ctx, name)
		},
	}
}

// tally counts the cases that were explored so far.
type tally struct {
	mu        sync.Mutex
	result    lab.Result
	states    map[string]*lab.State
	cases     []Case
	reached   map[string]bool // by workload and point
	unreached []string
	needless  int // cases in which there was nothing to disturb
	occurred  int // cases in which all faults occurred
	all       int // possible cases of one fault
	known     int // points that the learning runs found
	pairs     []Case
	log       string // of the last run that broke a rule
}

func newTally() *tally { return &tally{states: map[string]*lab.State{}, reached: map[string]bool{}} }

func (r *runner) explore(ctx context.Context) (lab.Result, error) {
	begin := time.Now()
	t := newTally()
	err := r.exploreSingly(ctx, t)
	slices.SortFunc(t.pairs, func(a, b Case) int { return strings.Compare(a.String(), b.String()) })
	pairs := lab.Sample(t.pairs, r.bounds.pairs)
	if err == nil {
		err = r.runCases(ctx, pairs, t)
	}
	t.result.Took = time.Since(begin)
	t.count(len(pairs))
	return t.result, err
}

// exploreSingly runs each workload without a fault, and then the cases of one fault.
func (r *runner) exploreSingly(ctx context.Context, t *tally) error {
	err := lab.ForEach(ctx, r.parallel, r.learningCases(), func(ctx context.Context, c Case) error { return r.learn(ctx, c, t) })
	if err != nil {
		return err
	}
	return r.runCases(ctx, t.cases, t)
}

// count adds the counts of the explored cases to the result.
func (t *tally) count(pairs int) {
	t.result.Points = len(t.reached)
	t.result.Cases, t.result.Occurred = t.occurred+len(t.unreached), t.occurred
	t.result.Notes = append(t.result.Notes,
		fmt.Sprintf("%d of %d points in %d workloads, %d cases not reached again", len(t.reached), t.known, len(t.states), len(t.unreached)),
		fmt.Sprintf("%d cases of one fault in all, about %s at this speed", t.all, estimate(t.all, t.result)),
		fmt.Sprintf("%d pairs of %d known", pairs, len(t.pairs)))
	if t.needless > 0 {
		t.result.Notes = append(t.result.Notes, fmt.Sprintf("%d cases in which there was no server to change", t.needless))
	}
	for _, name := range t.unreached {
		t.result.Notes = append(t.result.Notes, "not reached: "+name)
	}
}

// estimate returns how long so many runs would take.
func estimate(runs int, r lab.Result) time.Duration {
	return (r.Took * time.Duration(runs) / time.Duration(max(1, r.Runs))).Round(time.Minute)
}

// learningCases returns the cases without faults.
func (r *runner) learningCases() []Case {
	var all []Case
	for _, e := range r.engines {
		for _, w := range workloads {
			wanted := len(r.bounds.workloads) == 0 || slices.Contains(r.bounds.workloads, w.name)
			if wanted && w.suits(e) {
				all = append(all, Case{Workload: w.name + "/" + e.Name(), Recovery: lab.ByRestart})
			}
		}
	}
	return all
}

// learn runs a workload without faults, and adds the cases of its points.
func (r *runner) learn(ctx context.Context, c Case, t *tally) error {
	var watcher Injector = noInjector{}
	if r.source != nil {
		watcher = r.source.Watcher()
	}
	o, err := r.run(ctx, c, watcher, nil)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addRun(o)
	t.states[c.Workload] = &o.state
	if len(o.learned) == 0 {
		return fmt.Errorf("%s: nothing was learned", c)
	}
	points := o.learned[0]
	if r.source == nil {
		points = withFaults(points, r.pointFaults())
	}
	t.known += len(points)
	some, all := r.casesOf(c.Workload, points)
	t.cases = append(t.cases, some...)
	t.all += all
	return r.stopIfFound(o)
}

func (t *tally) addRun(o outcome) {
	t.result.AddRun(o.violations)
	if len(o.violations) > 0 {
		t.log = o.log
	}
}

// pointFaults returns the faults that points may have.
func (r *runner) pointFaults() Faults {
	if r.faults == nil {
		return crashes
	}
	return r.faults
}

// casesOf returns the cases of one fault, as many as the bounds allow, and the number of all
// cases. If it selects crashes, it spreads them over the points that change something.
func (r *runner) casesOf(workload string, points []string) (some []Case, count int) {
	all, limit := r.allCasesOf(workload, points), r.bounds.cases
	if r.bounds.eachPoint {
		limit = len(points)
	}
	switch {
	case limit == 0:
		return all, len(all)
	case r.source != nil:
		return lab.Sample(all, limit), len(all)
	case r.faults == nil:
		return someCases(workload, withFaults(points, crashesOfMutations), crashesOfMutations, limit), len(all)
	}
	return someCases(workload, points, r.faults, limit), len(all)
}

func withFaults(points []string, faults Faults) []string {
	return slices.DeleteFunc(slices.Clone(points), func(p string) bool { return len(faults(p)) == 0 })
}

// allCasesOf returns all cases of one fault.
func (r *runner) allCasesOf(workload string, points []string) []Case {
	if r.source != nil {
		return r.source.Cases(workload, points)
	}
	return allCases(workload, points, r.pointFaults(), r.inTurn)
}

// recoveriesOf returns the recoveries that are possible after a fault.
func recoveriesOf(fault string) []lab.Recovery {
	if fault == held+string(outside.Superseded) {
		return []lab.Recovery{lab.ByStandby}
	}
	return []lab.Recovery{lab.ByRestart, lab.ByStandby}
}

// someCases returns up to limit cases, spread over all points, with alternating faults and recoveries.
// No point has a second case before each point has one. Workloads begin with different faults, so
// that a few cases of each workload cover all faults.
func someCases(workload string, points []string, faults Faults, limit int) []Case {
	var some []Case
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

// possible returns the faults that are possible in a workload. Engines are not exchanged while a VirtualMachine is created:
// it would be bound to the other engine. Only workloads that end a pod can have a process that is halted forever in it.
func possible(workload string, faults []string) []string {
	name, engine, _ := strings.Cut(workload, "/")
	return slices.DeleteFunc(slices.Clone(faults), func(fault string) bool {
		switch fault {
		case held + string(outside.Exchanged):
			return name == "recreate"
		case held + string(outside.Halted), held + string(outside.SupervisorHalted):
			return engine == pod.Name && !slices.Contains([]string{"power", "restart", "delete"}, name)
		}
		return false
	})
}

// newCase returns a case with the nth recovery.
func newCase(workload, point, fault string, n int) Case {
	recoveries := recoveriesOf(fault)
	return NewCase(workload, recoveries[n%len(recoveries)], point, fault)
}

// allCases returns the cases of all faults at all points, with the recoveries alternating or
// each with all recoveries.
func allCases(workload string, points []string, faults Faults, inTurn bool) []Case {
	var all []Case
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

func (r *runner) runCases(ctx context.Context, cases []Case, t *tally) error {
	if r.source == nil {
		return lab.ForEach(ctx, r.parallel, cases, func(ctx context.Context, c Case) error { return r.runCase(ctx, c, newNoInjector, t) })
	}
	return r.source.Inject(ctx, r.Lab, r.parallel, cases, func(ctx context.Context, c Case, newInjector func() Injector) error {
		return r.runCase(ctx, c, newInjector, t)
	})
}

// runCase runs a case, twice if a fault was not reached.
func (r *runner) runCase(ctx context.Context, c Case, newInjector func() Injector, t *tally) error {
	t.mu.Lock()
	want := t.states[c.Workload]
	t.mu.Unlock()
	var o outcome
	for range 2 {
		var err error
		if o, err = r.run(ctx, c, newInjector(), want); err != nil {
			return err
		}
		if o.crashed >= len(c.crashes) || o.needless || len(o.violations) > 0 {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.addRun(o)
	switch {
	case o.crashed >= len(c.crashes):
		t.occurred++
		point, _ := c.Fault()
		t.reached[c.Workload+"/"+point] = true
		if len(c.crashes) == 1 && len(o.learned) > 1 && r.faults == nil {
			t.addPairs(c, o.learned[1])
		}
	case o.needless:
		t.needless++
	default:
		t.unreached = append(t.unreached, c.String())
	}
	return r.stopIfFound(o)
}

// stopIfFound returns an error that ends FindViolation once there is a violation.
func (r *runner) stopIfFound(o outcome) error {
	if r.finds && len(o.violations) > 0 {
		return errFound
	}
	return nil
}

// addPairs adds the cases in which the next process crashes too.
func (t *tally) addPairs(c Case, points []string) {
	for _, p := range points {
		for _, moment := range crashes(p) {
			t.pairs = append(t.pairs, Case{c.Workload, c.Recovery, []crashPoint{c.crashes[0], crashPoint(p + "/" + moment)}})
		}
	}
}

// replay runs the workload without faults, and then the case that is compared with it.
func (r *runner) replay(ctx context.Context, name string) (lab.Result, error) {
	begin := time.Now()
	t := newTally()
	c, err := parseCase(name)
	if err == nil {
		err = r.learn(ctx, Case{Workload: c.Workload, Recovery: lab.ByRestart}, t)
	}
	if err == nil {
		err = r.runCases(ctx, []Case{c}, t)
	}
	t.result.Points, t.result.Took = len(t.reached), time.Since(begin)
	if err == nil && t.occurred == 0 {
		err = errors.New("the point was not reached")
	}
	if t.log != "" {
		t.result.Notes = append(t.result.Notes, t.log)
	}
	return t.result, err
}

// findParallel is how many runs of FindViolation take place at a time.
const findParallel = 8

// errFound ends the exploration of FindViolation.
var errFound = errors.New("a violation was found")

// FindViolation explores faults, or crashes if faults is nil, in the named workloads until it finds
// a violation. It is for controllers with a seeded bug.
func FindViolation(ctx context.Context, l *lab.Lab, engine lab.Engine, faults Faults, names ...string) (lab.Result, error) {
	if faults == nil {
		faults = crashesOfMutations
	}
	r := &runner{Lab: l, engines: []lab.Engine{engine}, parallel: findParallel, bounds: bounds{workloads: names}, faults: faults, finds: true}
	t := newTally()
	err := r.exploreSingly(ctx, t)
	t.result.Points = len(t.reached)
	if errors.Is(err, errFound) {
		err = nil
	}
	return t.result, err
}
