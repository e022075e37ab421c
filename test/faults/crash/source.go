// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"context"
	"strings"

	"cloudnative.tw/drover/test/faults/lab"
)

// Source has faults other than crashes, at points that controllers do not report.
type Source interface {
	// Cases returns all cases of a workload with the given points.
	Cases(workload string, points []string) []Case
	// Watcher returns an Injector that only records points.
	Watcher() Injector
	// Inject calls run for each case, several at a time.
	Inject(ctx context.Context, l *lab.Lab, parallel int, cases []Case, run Run) error
}

// NewCase returns a case of one fault.
func NewCase(workload string, recovery lab.Recovery, point, fault string) Case {
	return Case{workload, recovery, []crashPoint{crashPoint(point + "/" + fault)}}
}

// Fault returns the first fault, and the point at which it occurs.
func (c Case) Fault() (point, fault string) {
	point, fault, _ = strings.Cut(string(c.crashes[0]), "/")
	return point, fault
}

// Run runs a case. It runs the case again with a new injector if the fault has not occurred.
type Run func(ctx context.Context, c Case, newInjector func() Injector) error

// Injector injects the fault of one run.
type Injector interface {
	// Prepare is called before the first process starts.
	Prepare(w *lab.World)
	// Act is called when the workload's setup, which is without faults, is over.
	Act(r *lab.Replicas)
	// Await is called after the workload's last step, and returns when the fault is over.
	Await(ctx context.Context)
	// Seen returns the points that were seen, and whether the fault has occurred.
	Seen() (points []string, hasOccurred bool)
}

// noInjector is for faults that controllers inject themselves at their crash points.
type noInjector struct{}

func newNoInjector() Injector { return noInjector{} }

// Prepare implements Injector.
func (noInjector) Prepare(*lab.World) {}

// Act implements Injector.
func (noInjector) Act(*lab.Replicas) {}

// Await implements Injector.
func (noInjector) Await(context.Context) {}

// Seen implements Injector.
func (noInjector) Seen() ([]string, bool) { return nil, false }

// isInjected reports whether the faults come from a Source.
func (s *crashRun) isInjected() bool { return s.injector != Injector(noInjector{}) }
