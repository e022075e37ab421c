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

func activeMS(r round) float64 { return bench.Milliseconds(r.active) }

func goneMS(r round) float64 { return bench.Milliseconds(r.gone) }

// roundFigures are the figures that describe rounds with n VMs.
var roundFigures = []struct {
	what string
	of   func(r round, n int) float64
}{
	{activeText, func(r round, _ int) float64 { return activeMS(r) }},
	{goneText, func(r round, _ int) float64 { return goneMS(r) }},
	{"CPU of the controller, per VM created", func(r round, n int) float64 { return bench.Milliseconds(r.cpu) / float64(n) }},
	{"CPU of all processes, per VM created", func(r round, n int) float64 { return bench.Milliseconds(r.cpuAll) / float64(n) }},
	{"CPU of all processes, per VM deleted", func(r round, n int) float64 { return bench.Milliseconds(r.cpuGone) / float64(n) }},
}

const (
	activeText = "create to Active"
	goneText   = "delete all"
)

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
	floors := []string{floorNoop}
	if b.Barest {
		floors = append(floors, floorBare)
	}
	var ours []round
	contenders := []bench.Contender{w.takeRound(ctx, n, &ours, func() (*bench.Controller, error) {
		return w.startDrover(ctx, nil, "--vm-driver=fake")
	})}
	rounds := map[string]*[]round{}
	for _, floor := range floors {
		rounds[floor] = &[]round{}
		contenders = append(contenders, w.takeRound(ctx, n, rounds[floor], func() (*bench.Controller, error) { return w.StartFloor(floor) }))
	}
	if err := bench.TakeTurns(b.turnsFor(n), contenders...); err != nil {
		return err
	}
	for _, floor := range floors {
		suffix := map[string]string{floorBare: ", beside the barest"}[floor]
		for _, f := range roundFigures {
			of := func(r round) float64 { return f.of(r, n) }
			row := b.report.AddRow("fake", f.what+suffix, n, "ms", bench.Figures(ours, of)...).
				CompareWith(floor, bench.Figures(*rounds[floor], of)...)
			if n == 1000 && f.what == activeText {
				row.RatioAtMost(1.2)
			}
		}
	}
	return nil
}

// takeRound is the turn of a process.
func (w *environment) takeRound(ctx context.Context, n int, rounds *[]round, start func() (*bench.Controller, error)) bench.Contender {
	return func(int) error {
		p, err := start()
		if err != nil {
			return err
		}
		r, err := w.runRound(ctx, p, n)
		*rounds = append(*rounds, r)
		return p.StopWith(err)
	}
}

// runRound creates VMs and deletes them. One is created before, so that connections are
// open.
func (w *environment) runRound(ctx context.Context, p *bench.Controller, n int) (r round, err error) {
	if err := w.openConnections(ctx, p); err != nil {
		return r, err
	}
	if r.cpu, r.cpuAll, err = w.measureCPU(p, func() (err error) {
		r.active, err = w.vms.CreateMany(ctx, n)
		return err
	}); err != nil {
		return r, err
	}
	if err := w.AwaitQuiet(ctx, p); err != nil {
		return r, err
	}
	_, r.cpuGone, err = w.measureCPU(p, func() (err error) {
		r.gone, err = w.vms.DeleteMany(ctx, n)
		return err
	})
	return r, err
}

func (w *environment) openConnections(ctx context.Context, p *bench.Controller) error {
	if _, err := w.vms.CreateMany(ctx, 1); err != nil {
		return err
	}
	if _, err := w.vms.DeleteMany(ctx, 1); err != nil {
		return err
	}
	return w.AwaitQuiet(ctx, p)
}

// measureCPU returns the CPU time of the controller, and of it, the API server and this
// program together, during an operation.
func (w *environment) measureCPU(p *bench.Controller, do func() error) (own, all time.Duration, err error) {
	read := func() (own, all time.Duration, err error) {
		own, err = bench.CPUTime(p.PID())
		others, othersErr := bench.CPUTime(w.PID(), os.Getpid())
		return own, own + others, errors.Join(err, othersErr)
	}
	ownBefore, allBefore, err := read()
	if err == nil {
		err = do()
	}
	if err != nil {
		return 0, 0, err
	}
	own, all, err = read()
	return own - ownBefore, all - allBefore, err
}

// compareTimePerVM compares the time per VM of many with that of 1,000.
func (b *benchmark) compareTimePerVM() {
	base, ok := b.report.FindFigure("fake", activeText, 1000)
	for _, n := range b.Sizes {
		have, found := b.report.FindFigure("fake", activeText, n)
		if !ok || !found || n <= 1000 {
			continue
		}
		row := b.report.AddRow("fake", "create to Active, per VM", n, "ms", have.Median/float64(n)).
			CompareWith("1,000 VMs", base.Median/1000)
		if n == 10000 {
			row.RatioAtMost(1.2)
		}
	}
}
