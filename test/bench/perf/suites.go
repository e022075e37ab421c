// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"cloudnative.tw/drover/test/bench"
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
	options
	report *report
	shared *environment
}

func benchmarkMain(ctx context.Context, o options) (err error) {
	b := &benchmark{options: o, report: newReport(o)}
	defer func() { err = errors.Join(err, b.closeShared()) }()
	if o.Keep {
		if err := b.report.loadRows(o.JSON); err != nil {
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
	return b.report.printReport(os.Stdout)
}

// sharedEnvironment returns the environment shared by suites that leave it empty.
func (b *benchmark) sharedEnvironment(ctx context.Context) (*environment, error) {
	if b.shared != nil {
		return b.shared, nil
	}
	w, err := b.newEnvironment(ctx, apiOnly)
	b.shared = w
	return w, err
}

func (b *benchmark) closeShared() error {
	if b.shared == nil {
		return nil
	}
	return b.shared.closeEnvironment()
}

// turnsFor returns how many turns are taken with that many VMs.
func (b *benchmark) turnsFor(vms int) int {
	if vms > 1000 {
		return b.BigPairs
	}
	return b.Pairs
}

// contender is one of the compared programs.
type contender func(turn int) error

// takeTurns runs all of them the same number of times. The order changes, so that
// what one leaves behind affects all.
func takeTurns(turns int, contenders ...contender) error {
	for turn := range turns {
		for n := range contenders {
			if err := contenders[(turn+n)%len(contenders)](turn); err != nil {
				return fmt.Errorf("turn %d: %w", turn+1, err)
			}
		}
	}
	return nil
}
