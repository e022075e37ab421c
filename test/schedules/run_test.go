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
	// convergeLimit bounds the time from the end of faults until all requests are complete: the
	// Lease, the cluster claim, and the longest backoff that faults may have caused.
	convergeLimit = 8 * time.Minute
	// usageDelay is how long it takes until the usage is known: two samples, after the timeout of the last
	// call that a fault made hang.
	usageDelay = 66*time.Second + 30*time.Second
	// restPeriod is how long nothing may be written once all requests are complete.
	restPeriod = 61 * time.Second
)

// Run runs a schedule, inside a bubble of testing/synctest.
func Run(o Options) (Result, error) {
	env, err := newEnvironment(o)
	if err != nil {
		return Result{}, err
	}
	err = env.run()
	all := env.judge.decisions()
	env.judge.replayDecisions(all)
	env.stop()
	return Result{
		Seed: o.Seed, Violations: env.judge.violations, Steps: env.scheduler.steps,
		Handovers: max(0, len(env.judge.holders)-1), Actions: env.users.actions, Faults: env.faults.counts,
		History: rules.FormatDecisions(all),
	}, err
}

func (env *environment) run() error {
	if err := env.judge.addForeign(); err != nil {
		return err
	}
	faultTime := minFaultTime + time.Duration(env.random.Int64N(int64(maxFaultTime-minFaultTime)))
	if err := env.runUntil(time.Now().Add(faultTime), func() bool { return false }); err != nil {
		return err
	}
	env.trace("users and faults stop")
	env.users.active, env.faults.enabled = false, false
	env.faults.inject()
	converged := func() bool { return env.judge.unsettled() == nil }
	if err := env.runUntil(time.Now().Add(convergeLimit), converged); err != nil {
		return err
	}
	if len(env.judge.violations) > 0 {
		return nil // the schedule has ended at the first violation
	}
	if left := env.judge.unsettled(); left != nil {
		env.judge.violate(left.Rule, "%s after faults have stopped, %s", convergeLimit, left.Text)
		return nil
	}
	env.judge.checkOutcome()
	if !env.checksRest {
		return nil
	}
	return env.checkRest()
}

// checkRest checks that nothing is written or changes once all requests are complete and the
// usage is known.
func (env *environment) checkRest() error {
	if err := env.runUntil(time.Now().Add(usageDelay), func() bool { return false }); err != nil {
		return err
	}
	writes := env.api.writes
	if err := env.runUntil(time.Now().Add(restPeriod), func() bool { return false }); err != nil {
		return err
	}
	if n := env.api.writes - writes; n > 0 {
		env.judge.violate(rules.QuietAtRest, "%d writes in %s of rest", n, restPeriod)
	}
	if left := env.judge.unsettled(); left != nil {
		env.judge.violate(rules.Converges, "after all requests were complete, %s", left.Text)
	}
	env.judge.checkOutcome()
	return nil
}

// runUntil runs until a time, a condition or the first violation.
func (env *environment) runUntil(end time.Time, over func() bool) error {
	for time.Now().Before(end) && len(env.judge.violations) == 0 && !over() {
		env.gate.awaitOperations()
		if err := env.superviseReplicas(!env.faults.enabled); err != nil {
			return err
		}
		env.faults.inject()
		env.users.act()
		limit := env.faults.nextDue(env.nextStart(end))
		if env.users.active {
			limit = earliest(limit, env.users.next)
		}
		env.scheduler.step(limit)
		env.judge.followAPI()
	}
	return nil
}

// stop ends all processes, so that no goroutine is left.
func (env *environment) stop() {
	for _, p := range env.processes() {
		env.gate.awaitOperations()
		p.kill()
	}
	for len(env.dying) > 0 {
		env.stopKilled()
		time.Sleep(time.Second)
	}
	time.Sleep(time.Minute) // lets goroutines end that wait for timers
}
