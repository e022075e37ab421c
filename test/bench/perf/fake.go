// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"errors"
	"os"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// round is the result of creating and deleting VMs once: the times until VMs were active and
// gone, the CPU time of the controller and of all processes for the creation, and the CPU time
// of all processes for the deletion.
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

// measureFake measures how long fake VMs take until they are Active and until they are gone, and
// compares the times with floors. It compares the time per VM with the time for 1,000 VMs, if measured.
func measureFake(floors ...string) func(context.Context, *bench.Environment) error {
	return func(ctx context.Context, e *bench.Environment) error {
		perVM := map[int]float64{}
		for _, n := range e.Sizes {
			ours, err := measureFakeSize(ctx, e, n, floors)
			if err != nil {
				return err
			}
			perVM[n] = bench.Median(bench.Figures(ours, activeMS)) / float64(n)
			if n <= 1000 || perVM[1000] == 0 {
				continue
			}
			row := e.AddRow("create to Active, per VM", n, "ms", perVM[n]).CompareWith("1,000 VMs", perVM[1000])
			if n == 10000 {
				row.RatioAtMost(1.2)
			}
		}
		return nil
	}
}

func measureFakeSize(ctx context.Context, e *bench.Environment, n int, floors []string) (ours []round, err error) {
	contenders := []bench.Contender{takeRound(ctx, e, n, &ours, func() (*bench.Controller, error) {
		return e.StartController(ctx, nil, "--vm-driver=fake")
	})}
	rounds := make([][]round, len(floors))
	for at, floor := range floors {
		contenders = append(contenders, takeRound(ctx, e, n, &rounds[at], func() (*bench.Controller, error) { return e.StartFloor(floor) }))
	}
	if err := bench.TakeTurns(e.TurnsWith(n), contenders...); err != nil {
		return nil, err
	}
	for at, floor := range floors {
		for _, f := range roundFigures {
			of := func(r round) float64 { return f.of(r, n) }
			row := e.AddRow(f.what, n, "ms", bench.Figures(ours, of)...).CompareWith(floor, bench.Figures(rounds[at], of)...)
			if n == 1000 && floor == floorNoop && f.what == activeText {
				row.RatioAtMost(1.2)
			}
		}
	}
	return ours, nil
}

// takeRound returns a contender that starts a process, runs a round with it and stops it.
func takeRound(ctx context.Context, e *bench.Environment, n int, rounds *[]round, start func() (*bench.Controller, error)) bench.Contender {
	return func(int) error {
		p, err := start()
		if err != nil {
			return err
		}
		r, err := runRound(ctx, e, p, n)
		*rounds = append(*rounds, r)
		return p.StopWith(err)
	}
}

// runRound creates VMs and deletes them, after openConnections.
func runRound(ctx context.Context, e *bench.Environment, p *bench.Controller, n int) (r round, err error) {
	if err := openConnections(ctx, e, p); err != nil {
		return r, err
	}
	if r.cpu, r.cpuAll, err = measureCPU(e, p, func() (err error) {
		r.active, err = e.VMs.CreateMany(ctx, n)
		return err
	}); err != nil {
		return r, err
	}
	if err := e.AwaitQuiet(ctx, p); err != nil {
		return r, err
	}
	_, r.cpuGone, err = measureCPU(e, p, func() (err error) {
		r.gone, err = e.VMs.DeleteMany(ctx, n)
		return err
	})
	return r, err
}

func openConnections(ctx context.Context, e *bench.Environment, p *bench.Controller) error {
	if _, err := e.VMs.CreateMany(ctx, 1); err != nil {
		return err
	}
	if _, err := e.VMs.DeleteMany(ctx, 1); err != nil {
		return err
	}
	return e.AwaitQuiet(ctx, p)
}

// measureCPU returns the CPU time of the controller during an operation, and the CPU time of the
// controller, the API server and this program together.
func measureCPU(e *bench.Environment, p *bench.Controller, do func() error) (own, all time.Duration, err error) {
	read := func() (own, all time.Duration, err error) {
		own, err = bench.CPUTime(p.PID())
		others, othersErr := bench.CPUTime(e.PID(), os.Getpid())
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
