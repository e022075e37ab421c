// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"os"

	"cloudnative.tw/drover/test/faults/lab"
)

// Hooks are called in a run. Each may be nil.
type Hooks struct {
	// Prepare is called before the first process starts.
	Prepare func(*lab.World)
	// Act is called when the workload's setup is over, which faults do not disturb.
	Act func(*lab.Replicas)
	// Await is called after the last step, and returns when the faults are over.
	Await func(context.Context)
}

func (h Hooks) prepare(w *lab.World) {
	if h.Prepare != nil {
		h.Prepare(w)
	}
}

func (h Hooks) act(r *lab.Replicas) {
	if h.Act != nil {
		h.Act(r)
	}
}

func (h Hooks) await(ctx context.Context) {
	if h.Await != nil {
		h.Await(ctx)
	}
}

// Play is a run of a workload with faults that are no crashes.
type Play struct {
	Engines []lab.Engine
	// Workload is "<workload>/<engine>".
	Workload string
	Recovery lab.Recovery
	// Name is the case's.
	Name  string
	Hooks Hooks
	// Want is the state that a run without faults ended in; nil for that run itself.
	Want *lab.State
}

// Run runs it, and returns the state at its end, the rules that it broke, and what the
// processes printed.
func (p Play) Run(ctx context.Context, l *lab.Lab) (lab.State, []lab.Violation, string, error) {
	r := &runner{Lab: l, engines: p.Engines, name: p.Name, hooks: p.Hooks, keep: os.Getenv(lab.KeepEnv)}
	o, err := r.run(ctx, testCase{workload: p.Workload, recovery: p.Recovery}, p.Want)
	return o.state, o.violations, o.log, err
}

// Workloads returns those of some names that some engines run, as "<workload>/<engine>". No
// names means all.
func Workloads(l *lab.Lab, engines []lab.Engine, names []string) []string {
	var all []string
	for _, c := range (&runner{Lab: l, engines: engines, bounds: Bounds{Workloads: names}}).learningCases() {
		all = append(all, c.workload)
	}
	return all
}
