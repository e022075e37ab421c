// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"io"
	"time"

	"cloudnative.tw/drover/test/framework/rules"
)

// Options are the settings of a schedule.
type Options struct {
	Seed uint64
	// Trace, if not nil, gets a line for each step.
	Trace io.Writer
}

// Result is the outcome of a schedule.
type Result struct {
	Seed       uint64
	Violations []rules.Violation
	Steps      int
	Handovers  int
	Actions    int
	Faults     map[string]int
	// History has the last decisions, in sentences.
	History string
}

const (
	// minFaultTime and maxFaultTime bound how long users and faults act.
	minFaultTime, maxFaultTime = 20 * time.Second, 90 * time.Second
	// convergeLimit is the bound for all to be as requested once faults have stopped: the
	// Lease, the claim, and the longest backoff that faults may have led to.
	convergeLimit = 8 * time.Minute
	// usageDelay is how long it takes until the usage is known, which is two samples, after the last
	// call that a fault had hang.
	usageDelay = 66*time.Second + 30*time.Second
	// restPeriod is how long nothing may be written once all is as requested.
	restPeriod = 61 * time.Second
)

// Run runs a schedule, inside a bubble of testing/synctest.
func Run(o Options) (Result, error) {
	w, err := newWorld(o)
	if err != nil {
		return Result{}, err
	}
	err = w.run()
	all := w.judge.decisions()
	w.judge.replayDecisions(all)
	w.stop()
	return Result{
		Seed: o.Seed, Violations: w.judge.violations, Steps: w.scheduler.steps,
		Handovers: max(0, len(w.judge.holders)-1), Actions: w.users.actions, Faults: w.faults.counts,
		History: rules.FormatDecisions(all),
	}, err
}

func (w *world) run() error {
	if err := w.judge.addForeign(); err != nil {
		return err
	}
	faultTime := minFaultTime + time.Duration(w.random.Int64N(int64(maxFaultTime-minFaultTime)))
	if err := w.runUntil(time.Now().Add(faultTime), func() bool { return false }); err != nil {
		return err
	}
	w.trace("users and faults stop")
	w.users.active, w.faults.enabled = false, false
	w.faults.inject()
	converged := func() bool { return w.judge.unsettled() == nil }
	if err := w.runUntil(time.Now().Add(convergeLimit), converged); err != nil {
		return err
	}
	if len(w.judge.violations) > 0 {
		return nil // the schedule has ended there
	}
	if left := w.judge.unsettled(); left != nil {
		w.judge.violate(left.Rule, "%s after faults have stopped, %s", convergeLimit, left.Text)
		return nil
	}
	w.judge.checkOutcome()
	if !w.checksRest {
		return nil
	}
	return w.checkRest()
}

// checkRest checks that nothing is written, or changes, once all is as requested. What was
// under way when it became so may still end.
func (w *world) checkRest() error {
	if err := w.runUntil(time.Now().Add(usageDelay), func() bool { return false }); err != nil {
		return err
	}
	writes := w.api.writes
	if err := w.runUntil(time.Now().Add(restPeriod), func() bool { return false }); err != nil {
		return err
	}
	if n := w.api.writes - writes; n > 0 {
		w.judge.violate(rules.O8, "%d writes in %s of rest", n, restPeriod)
	}
	if left := w.judge.unsettled(); left != nil {
		w.judge.violate(rules.O10, "after all was as requested, %s", left.Text)
	}
	w.judge.checkOutcome()
	return nil
}

// runUntil runs until a time, a condition or the first violation.
func (w *world) runUntil(end time.Time, over func() bool) error {
	for time.Now().Before(end) && len(w.judge.violations) == 0 && !over() {
		w.gate.awaitOperations()
		if err := w.superviseReplicas(!w.faults.enabled); err != nil {
			return err
		}
		w.faults.inject()
		w.users.act()
		limit := w.faults.nextDue(w.nextStart(end))
		if w.users.active {
			limit = earliest(limit, w.users.next)
		}
		w.scheduler.step(limit)
		w.judge.followAPI()
	}
	return nil
}

// stop ends all processes, so that no goroutine is left.
func (w *world) stop() {
	for _, p := range w.processes() {
		w.gate.awaitOperations()
		p.kill()
	}
	for len(w.dying) > 0 {
		w.stopKilled()
		time.Sleep(time.Second)
	}
	time.Sleep(time.Minute) // what only waits for its time ends
}
