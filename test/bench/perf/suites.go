// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// suites in the order in which they run.
var suites = []struct {
	name string
	run  func(*benchmark, context.Context) error
}{
	{"apiserver", (*benchmark).measureAPIServer},
	{"fake", (*benchmark).measureFake},
	{"idle", (*benchmark).measureIdle},
	{"restart", (*benchmark).measureRestart},
	{"writes", (*benchmark).measureWrites},
	{"slow", (*benchmark).measureSlowEngine},
	{"docker", (*benchmark).runDockerSuite},
	{"up", (*benchmark).measureUp},
	{"burst", (*benchmark).measureBurst},
}

func suiteNames() []string {
	names := make([]string, len(suites))
	for n, s := range suites {
		names[n] = s.name
	}
	return names
}

// defaultSuites are all but the one that takes ten minutes for one figure.
func defaultSuites() []string {
	return slices.DeleteFunc(suiteNames(), func(name string) bool { return name == "burst" })
}

// benchmark is one run of the program.
type benchmark struct {
	*options
	report *bench.Report
	shared *environment
}

// Run implements bench.Benchmark.
func (o *options) Run(ctx context.Context) (err error) {
	b := &benchmark{options: o, report: bench.NewReport(o)}
	defer func() {
		if b.shared != nil {
			err = errors.Join(err, b.shared.close())
		}
	}()
	if o.Keep {
		if err := b.report.LoadRows(o.JSON); err != nil {
			return err
		}
	}
	for _, s := range suites {
		if !slices.Contains(o.Suites, s.name) {
			continue
		}
		begin := time.Now()
		if err := s.run(b, ctx); err != nil {
			return fmt.Errorf("suite %s: %w", s.name, err)
		}
		bench.Logf("Suite %s took %s", s.name, time.Since(begin).Round(time.Second))
		if err := bench.WriteJSON(o.JSON, b.report); err != nil {
			return err
		}
	}
	return b.report.Finish(o.JSON)
}

// sharedEnvironment returns the environment shared by suites that leave it empty.
func (b *benchmark) sharedEnvironment(ctx context.Context) (w *environment, err error) {
	if b.shared == nil {
		b.shared, err = b.newEnvironment(ctx, framework.ClusterOptions{})
	}
	return b.shared, err
}

// turnsFor returns how many turns are taken with that many VMs.
func (b *benchmark) turnsFor(vms int) int {
	if vms > 1000 {
		return b.BigPairs
	}
	return b.Pairs
}
