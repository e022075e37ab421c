// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// round is what one turn of creating and deleting VMs took: times, and the CPU
// time of the controller and of all processes.
type round struct{ active, gone, cpu, cpuAll, cpuGone time.Duration }

// measureFake measures how long fake VMs take to Active and to their end, beside noop. To
// compare 10,000 with 1,000, per VM, turns of both are taken in this run.
func (b *benchmark) measureFake(ctx context.Context) error {
	w, err := b.sharedEnvironment(ctx)
	if err != nil {
		return err
	}
	for _, n := range b.Sizes {
		if err := b.measureFakeSize(ctx, w, n); err != nil {
			return err
		}
	}
	b.compareTimePerVM()
	return nil
}

func (b *benchmark) measureFakeSize(ctx context.Context, w *environment, n int) error {
	var ours, noop, bare []round
	contenders := []contender{func(int) error {
		p, err := w.startDrover(ctx, nil, "--vm-driver=fake")
		if err != nil {
			return err
		}
		ours, err = w.runRound(ctx, p, n, ours)
		return p.stopWith(err)
	}, w.floorRounds(ctx, floorNoop, n, &noop)}
	if b.Barest {
		contenders = append(contenders, w.floorRounds(ctx, floorBare, n, &bare))
	}
	if err := takeTurns(b.turnsFor(n), contenders...); err != nil {
		return err
	}
	for _, f := range roundFigures {
		of := func(r round) float64 { return f.of(r, n) }
		row := b.report.addRow("fake", f.what, n, "ms", selectFigures(ours, of)...).compareWith(floorNoop, selectFigures(noop, of)...)
		if n == 1000 && f.what == activeText {
			row.ratioAtMost("fake-1000", 1.2)
		}
		if !b.Barest {
			continue
		}
		row = b.report.addRow("fake", f.what+", beside the barest", n, "ms", selectFigures(ours, of)...).compareWith(floorBare, selectFigures(bare, of)...)
		if n == 1000 && f.what == activeText {
			row.ratioAtMost("fake-1000-bare", 1.2)
		}
	}
	return nil
}

// floorRounds is a floor's turn.
func (w *environment) floorRounds(ctx context.Context, floor string, n int, rounds *[]round) contender {
	return func(int) error {
		p, err := w.startFloor(floor)
		if err != nil {
			return err
		}
		*rounds, err = w.runRound(ctx, p, n, *rounds)
		return p.stopWith(err)
	}
}

// roundFigures are the figures that describe rounds with n VMs.
var roundFigures = []struct {
	what string
	of   func(r round, n int) float64
}{
	{activeText, func(r round, _ int) float64 { return toMilliseconds(r.active) }},
	{"delete all", func(r round, _ int) float64 { return toMilliseconds(r.gone) }},
	{"CPU of the controller, per VM created", func(r round, n int) float64 { return toMilliseconds(r.cpu) / float64(n) }},
	{"CPU of all processes, per VM created", func(r round, n int) float64 { return toMilliseconds(r.cpuAll) / float64(n) }},
	{"CPU of all processes, per VM deleted", func(r round, n int) float64 { return toMilliseconds(r.cpuGone) / float64(n) }},
}

const activeText = "create to Active"

// runRound creates VMs and deletes them. One is created before, so that connections are
// open.
func (w *environment) runRound(ctx context.Context, p *process, n int, rounds []round) ([]round, error) {
	if _, err := w.createVMs(ctx, 1); err != nil {
		return rounds, err
	}
	if _, err := w.deleteVMs(ctx, 1); err != nil {
		return rounds, err
	}
	if err := w.waitUntilQuiet(ctx, p); err != nil {
		return rounds, err
	}
	var r round
	var err error
	if r.cpu, r.cpuAll, err = w.measureCPU(p, func() (err error) {
		r.active, err = w.createVMs(ctx, n)
		return err
	}); err != nil {
		return rounds, err
	}
	if err := w.waitUntilQuiet(ctx, p); err != nil {
		return rounds, err
	}
	_, r.cpuGone, err = w.measureCPU(p, func() (err error) {
		r.gone, err = w.deleteVMs(ctx, n)
		return err
	})
	return append(rounds, r), err
}

// measureCPU returns the CPU time of the controller, and of it, the API server and this
// program together, during an operation.
func (w *environment) measureCPU(p *process, do func() error) (own, all time.Duration, err error) {
	before, err := w.cpuTimes(p)
	if err != nil {
		return 0, 0, err
	}
	if err := do(); err != nil {
		return 0, 0, err
	}
	after, err := w.cpuTimes(p)
	for n := range after {
		all += after[n] - before[n]
	}
	return after[0] - before[0], all, err
}

// cpuTimes are those of the controller, the API server and this program.
func (w *environment) cpuTimes(p *process) (all [3]time.Duration, err error) {
	for n, pid := range []int{p.PID(), w.cluster.PID(), os.Getpid()} {
		used, cpuErr := bench.CPUTime(pid)
		all[n], err = used, errors.Join(err, cpuErr)
	}
	return all, err
}

// compareTimePerVM compares the time per VM of many with that of 1,000.
func (b *benchmark) compareTimePerVM() {
	base, ok := b.report.findFigure("fake", activeText, 1000)
	for _, n := range b.Sizes {
		have, found := b.report.findFigure("fake", activeText, n)
		if !ok || !found || n <= 1000 {
			continue
		}
		row := b.report.addRow("fake", "create to Active, per VM", n, "ms", have.Median/float64(n)).
			compareWith("1,000 VMs", base.Median/1000)
		if n == 10000 {
			row.ratioAtMost("fake-10000", 1.2)
		}
	}
}

// selectFigures selects a figure of all measurements.
func selectFigures[T any](all []T, pick func(T) float64) []float64 {
	figures := make([]float64, len(all))
	for n, one := range all {
		figures[n] = pick(one)
	}
	return figures
}
