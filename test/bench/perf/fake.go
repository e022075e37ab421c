// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// round is what one turn of creating and deleting VMs took.
type round struct{ active, gone, cpu time.Duration }

// fake measures how long fake VMs take to Active and to their end, beside noop.
// For what 10,000 cost each, beside 1,000, turns of both are taken in this run.
func (b *benchmark) fake(ctx context.Context) error {
	w, err := b.world(ctx)
	if err != nil {
		return err
	}
	for _, n := range b.Sizes {
		if err := b.fakeOf(ctx, w, n); err != nil {
			return err
		}
	}
	b.perVM()
	return nil
}

func (b *benchmark) fakeOf(ctx context.Context, w *world, n int) error {
	var ours, floor []round
	err := takeTurns(b.pairs(n), func(int) error {
		p, err := w.drover(ctx, nil, "--vm-driver=fake")
		if err != nil {
			return err
		}
		ours, err = w.round(ctx, p, n, ours)
		return p.stop(err)
	}, func(int) error {
		p, err := w.floor(floorNoop)
		if err != nil {
			return err
		}
		floor, err = w.round(ctx, p, n, floor)
		return p.stop(err)
	})
	if err != nil {
		return err
	}
	active := func(r round) float64 { return milliseconds(r.active) }
	row := b.report.add("fake", activeText, n, "ms", each(ours, active)...).beside(floorNoop, each(floor, active)...)
	if n == 1000 {
		row.ratioAtMost("fake-1000", 1.2)
	}
	gone := func(r round) float64 { return milliseconds(r.gone) }
	b.report.add("fake", "delete all", n, "ms", each(ours, gone)...).beside(floorNoop, each(floor, gone)...)
	cpu := func(r round) float64 { return milliseconds(r.cpu) / float64(n) }
	b.report.add("fake", "CPU of the controller per VM created", n, "ms", each(ours, cpu)...).beside(floorNoop, each(floor, cpu)...)
	return nil
}

const activeText = "create to Active"

// round creates VMs and deletes them. One is made before, so that connections
// are open.
func (w *world) round(ctx context.Context, p *process, n int, rounds []round) ([]round, error) {
	if _, err := w.create(ctx, 1); err != nil {
		return rounds, err
	}
	if _, err := w.delete(ctx, 1); err != nil {
		return rounds, err
	}
	if err := w.quiet(ctx, p); err != nil {
		return rounds, err
	}
	before, err := bench.CPUTime(p.PID())
	if err != nil {
		return rounds, err
	}
	var r round
	if r.active, err = w.create(ctx, n); err != nil {
		return rounds, err
	}
	after, err := bench.CPUTime(p.PID())
	if err != nil {
		return rounds, err
	}
	r.cpu = after - before
	if err := w.quiet(ctx, p); err != nil {
		return rounds, err
	}
	r.gone, err = w.delete(ctx, n)
	return append(rounds, r), err
}

// perVM holds the time per VM of many against that of 1,000.
func (b *benchmark) perVM() {
	base, ok := b.report.find("fake", activeText, 1000)
	for _, n := range b.Sizes {
		have, found := b.report.find("fake", activeText, n)
		if !ok || !found || n <= 1000 {
			continue
		}
		row := b.report.add("fake", "create to Active, per VM", n, "ms", have.Median/float64(n)).
			beside("1,000 VMs", base.Median/1000)
		if n == 10000 {
			row.ratioAtMost("fake-10000", 1.2)
		}
	}
}

// each picks a figure of everything that was measured.
func each[T any](all []T, pick func(T) float64) []float64 {
	figures := make([]float64, len(all))
	for n, one := range all {
		figures[n] = pick(one)
	}
	return figures
}
