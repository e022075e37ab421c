// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"time"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/faults/outside"
	"cloudnative.tw/drover/test/framework/rules"
)

const (
	// quietTime is how late events and crashes may be.
	quietTime = 500 * time.Millisecond
	// restTime is how long a world must be at rest before it is judged. This is checked in runs without
	// a fault, and in one of restShare cases with one.
	restTime  = 3 * time.Second
	restShare = 10
	// stableTime is the same if a server may have ended: Drover writes 10 s after the start of a
	// run that it is stable, and restarts are at least 10 s apart on some engines.
	stableTime = 11 * time.Second
	// findTime bounds the wait for a correct state in FindViolation: the effects of a bug often last forever.
	findTime = 45 * time.Second
)

// outcome is the result of a run.
type outcome struct {
	// crashed is how many processes crashed at their points, or how many other faults occurred.
	crashed int
	// needless is set if the point was reached, but there was nothing to disturb.
	needless   bool
	violations []lab.Violation
	state      lab.State
	// learned are the points that each process reached in the workload, after its setup.
	learned [][]string
	log     string
}

// runner runs cases.
type runner struct {
	*lab.Lab
	engines []lab.Engine
	// parallel is how many runs take place at a time. They wait most of the time.
	parallel int
	bounds   bounds
	// faults and source come from Settings.
	faults Faults
	source Source
	// inTurn makes cases use the two recoveries alternately.
	inTurn bool
	// keep is the folder for logs of runs with violations, or "".
	keep string
	// finds is set in FindViolation, which ends with the first violation.
	finds bool
}

// run runs a case and compares its result with want, the state of a run without faults, unless it is nil.
func (r *runner) run(ctx context.Context, c Case, in Injector, want *lab.State) (o outcome, err error) {
	defer func(begin time.Time) {
		r.logProgress("%s %s crashed=%d %d violations", time.Since(begin).Round(time.Millisecond), c, o.crashed, len(o.violations))
	}(time.Now())
	work, engine, err := findWorkload(c.Workload, r.engines)
	if err != nil {
		return o, err
	}
	w, err := r.NewWorld(ctx)
	if err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, engine.CleanUp(context.WithoutCancel(ctx), w), w.Close()) }()
	if err := engine.Prepare(ctx, w); err != nil {
		return o, err
	}
	in.Prepare(w)
	replicas, err := w.StartReplicas(r.planOf(c, work, engine))
	if err != nil {
		return o, err
	}
	defer replicas.Stop()
	s := &crashRun{World: w, work: work, engine: engine, replicas: replicas, injector: in}
	s.backsUp = c.disturbance() == outside.Restored
	setup, err := s.playDisturbed(ctx, c, want == nil, &o)
	if err != nil {
		return o, fmt.Errorf("%s: %w\n%s", c, err, replicas.Output())
	}
	if len(o.violations) == 0 {
		o.violations = s.awaitEnds(ctx)
	}
	err = s.finish(ctx, c, r, want, &o)
	if v := lab.ViolationOf(err); v != nil {
		o.violations, err = append(o.violations, *v), nil
	}
	o.crashed, o.log = replicas.Crashed()+s.countFaults(), replicas.Output()
	if c.disturbance() != s.disturbance {
		o.needless, o.crashed = o.crashed > 0, 0
	}
	s.learn(setup, &o)
	for n := range o.violations {
		o.violations[n].Case, o.violations[n].History = c.String(), replicas.Decisions()
	}
	return o, errors.Join(err, r.keepLog(c, o))
}

// planOf returns the processes of a case.
func (r *runner) planOf(c Case, work workload, engine lab.Engine) lab.Plan {
	plan := lab.Plan{Engine: engine, Learn: true, Recovery: c.Recovery, Unprotected: work.unprotected}
	if r.source == nil {
		for _, p := range c.crashes {
			plan.Crashes = append(plan.Crashes, string(p))
		}
	}
	return plan
}

// playDisturbed is play with faults. It returns when they are over.
func (s *crashRun) playDisturbed(ctx context.Context, c Case, learning bool, o *outcome) (setup []int, err error) {
	finishDisturbance := s.startDisturbance(ctx, c.disturbance())
	setup, err = s.play(ctx, s.work, learning)
	if v := lab.ViolationOf(err); v != nil {
		o.violations = append(o.violations, *v)
	} else if err != nil {
		return nil, errors.Join(err, finishDisturbance())
	}
	if s.isInjected() {
		s.injector.Await(ctx)
	} else {
		s.awaitCrashes(len(c.crashes))
	}
	return setup, finishDisturbance()
}

// play runs the steps of the workload, and returns how many points each process had reached
// at the end of the setup.
func (s *crashRun) play(ctx context.Context, work workload, learning bool) (setup []int, err error) {
	for _, do := range work.setup {
		if err := do(ctx, s); err != nil {
			return nil, fmt.Errorf("setup: %w", err)
		}
	}
	if len(work.setup) > 0 {
		if learning {
			time.Sleep(quietTime) // events of the setup are sent late
		}
		for n := range s.replicas.Processes() {
			points, _, _, err := readPoints(s.LearnFile(n))
			if err != nil {
				return nil, err
			}
			setup = append(setup, len(points))
		}
	}
	if s.backsUp {
		if err := outside.BackUp(ctx, s.engine, s.World); err != nil {
			return nil, err
		}
	}
	s.injector.Act(s.replicas)
	for _, do := range work.act {
		if err := do(ctx, s); err != nil {
			return setup, err
		}
	}
	return setup, nil
}

// learn adds the points that processes reached after the setup, or that the injector saw.
func (s *crashRun) learn(setup []int, o *outcome) {
	if s.isInjected() {
		points, hasOccurred := s.injector.Seen()
		o.learned = [][]string{points}
		if hasOccurred {
			o.crashed = 1
		}
		return
	}
	for n := range s.replicas.Processes() {
		points, _, _, err := readPoints(s.LearnFile(n))
		if err != nil {
			return
		}
		if n < len(setup) {
			points = points[min(setup[n], len(points)):]
		}
		o.learned = append(o.learned, slices.DeleteFunc(points, unstable.MatchString))
	}
}

// countFaults returns how many faults other than crashes have occurred.
func (s *crashRun) countFaults() int {
	count := 0
	for n := range s.replicas.Processes() {
		_, faults, _, err := readPoints(s.LearnFile(n))
		if err == nil {
			count += len(faults)
		}
	}
	return count
}

// awaitEnds waits for the ends of calls that hang or are late: a call without a timeout would
// hang forever, and Judge must see the effects of a late call.
func (s *crashRun) awaitEnds(ctx context.Context) []lab.Violation {
	err := assert.Poll(ctx, "timeouts end the calls that hang", func() error {
		var hanging []string
		for n := range s.replicas.Processes() {
			_, begun, ended, err := readPoints(s.LearnFile(n))
			hanging = append(hanging, slices.DeleteFunc(begun, func(f string) bool {
				return err != nil || !lasts(f) || slices.Contains(ended, f)
			})...)
		}
		return assert.ErrorUnless(len(hanging) == 0, "%s", hanging)
	})
	if err != nil && ctx.Err() == nil {
		return []lab.Violation{{Rule: rules.Converges, Text: err.Error()}}
	}
	return nil
}

// awaitCrashes waits for crashes that occur after the last step, such as at its event.
func (s *crashRun) awaitCrashes(count int) {
	for begin := time.Now(); s.replicas.Crashed()+s.countFaults() < count && time.Since(begin) < quietTime; {
		time.Sleep(10 * time.Millisecond)
	}
}

// finish waits until the world is in the expected state, and judges it.
func (s *crashRun) finish(ctx context.Context, c Case, r *runner, want *lab.State, o *outcome) (err error) {
	if len(o.violations) > 0 {
		return nil // the workload did not converge
	}
	if want == nil || isSampled(c.String(), restShare) {
		if err := s.WaitRest(ctx, c.restTime()); err != nil {
			return err
		}
	}
	if r.finds {
		limited, cancel := context.WithTimeout(ctx, findTime)
		defer cancel()
		ctx = limited
	}
	o.violations, err = lab.Settle(ctx, func() ([]lab.Violation, error) {
		state, violations, err := s.Judge(context.WithoutCancel(ctx), s.replicas)
		if want != nil {
			for _, text := range s.differences(state, *want) {
				violations = append(violations, lab.Violation{Rule: rules.AsRequested, Text: text})
			}
		}
		o.state = state
		return violations, err
	})
	return err
}

// restTime returns how long the world of a case must be at rest before it is judged.
func (c Case) restTime() time.Duration {
	if c.disturbance() != "" {
		return stableTime
	}
	return restTime
}

// isSampled selects one of share cases by their names, in every run the same ones.
func isSampled(name string, share uint32) bool {
	return hash(name)%share == 0
}

func hash(name string) uint32 {
	h := fnv.New32()
	_, _ = h.Write([]byte(name))
	return h.Sum32()
}

// keepLog writes the log of a run with violations to the folder keep.
func (r *runner) keepLog(c Case, o outcome) error {
	if r.keep == "" || len(o.violations) == 0 {
		return nil
	}
	return os.WriteFile(filepath.Join(r.keep, fmt.Sprintf("crash-%08x.log", hash(c.String()))), fmt.Appendf(nil, "%s\n%v\n%s", c, o.violations, o.log), 0o600)
}

// logProgress adds a line about a run to the file progress in the folder keep.
func (r *runner) logProgress(format string, args ...any) {
	if r.keep == "" {
		return
	}
	f, err := os.OpenFile(filepath.Join(r.keep, "progress"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_, _ = fmt.Fprintf(f, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
	_ = f.Close()
}
