// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// flushDelay is how long after the last change events and similar writes have ended.
const flushDelay = 5 * time.Second

// measureIdle measures the cost of VMs at rest, and how long one more takes among them,
// beside one in a cluster without others.
func (b *benchmark) measureIdle(ctx context.Context) (err error) {
	alone, err := b.newEnvironment(ctx, framework.ClusterOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.close()) }()
	for _, n := range b.Sizes {
		if n < 100 {
			continue
		}
		if err := b.measureIdleSize(ctx, alone, n); err != nil {
			return err
		}
	}
	return nil
}

// measureIdleSize uses a cluster of its own, so that VMs need not be deleted.
func (b *benchmark) measureIdleSize(ctx context.Context, alone *environment, n int) (err error) {
	w, err := b.newEnvironment(ctx, framework.ClusterOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p, err := w.startDrover(ctx, nil, "--vm-driver=fake")
	if err != nil {
		return err
	}
	if err := w.createIdleVMs(ctx, p, n); err != nil {
		return p.StopWith(err)
	}
	if err := b.measureRest(ctx, w, p, n); err != nil {
		return p.StopWith(err)
	}
	return p.StopWith(b.measureNewVMs(ctx, alone, w, n))
}

// createIdleVMs makes idle VMs, and waits until all that follows is over.
func (w *environment) createIdleVMs(ctx context.Context, p *bench.Controller, n int) error {
	if err := w.idle.CreateSettled(ctx, n); err != nil {
		return err
	}
	if err := bench.Pause(ctx, flushDelay); err != nil {
		return err
	}
	return w.AwaitQuiet(ctx, p)
}

// measureRest measures while there is nothing to do.
func (b *benchmark) measureRest(ctx context.Context, w *environment, p *bench.Controller, n int) error {
	took, err := w.countDuring(ctx, p, func() error { return bench.Pause(ctx, b.Rest) })
	if err != nil {
		return err
	}
	memory, err := bench.MemoryOf(p.PID())
	if err != nil {
		return err
	}
	minutes := b.Rest.Minutes()
	b.report.AddRow("idle", "API writes to VMs at rest", n, "a minute", took.writes/minutes).AtMost(0)
	b.report.AddRow("idle", "engine calls at rest", n, "a minute", took.calls/minutes)
	cpu := b.report.AddRow("idle", "CPU at rest", n, "% of one core", 100*took.cpu/(60*minutes))
	if n == 10000 {
		cpu.AtMost(1)
	}
	b.report.AddRow("idle", "allocated at rest", n, "MB a minute", took.allocated/1e6/minutes)
	b.report.AddRow("idle", "resident memory, fake engine included", n, "MB", bench.Megabytes(memory.Resident))
	return nil
}

// measureNewVMs creates new VMs in both clusters by turns.
func (b *benchmark) measureNewVMs(ctx context.Context, alone, w *environment, n int) (err error) {
	other, err := alone.startDrover(ctx, nil, "--vm-driver=fake")
	if err != nil {
		return err
	}
	defer func() { err = other.StopWith(err) }()
	took := map[*environment][]round{}
	one := func(in *environment) bench.Contender {
		return func(turn int) error {
			r, err := in.newVM(ctx, fmt.Sprintf("new-%d", turn))
			took[in] = append(took[in], r)
			return err
		}
	}
	for _, in := range []*environment{alone, w} {
		if _, err := in.newVM(ctx, "warm"); err != nil {
			return err
		}
	}
	if err := bench.TakeTurns(b.Samples, one(w), one(alone)); err != nil {
		return err
	}
	row := b.reportAmong("idle", took[alone], took[w], n)
	if n == 10000 {
		row.RatioAtMost(1.2)
	}
	return nil
}

// newVM makes one more VM and deletes it.
func (w *environment) newVM(ctx context.Context, name string) (r round, err error) {
	r.active, r.gone, err = w.vms.NewOne(ctx, name, func(ctx context.Context) error { return bench.AwaitQuiet(ctx, w.PID()) })
	return r, err
}

// reportAmong compares a new VM among others with one alone.
func (b *benchmark) reportAmong(suite string, alone, among []round, vms int) *bench.Row {
	p95 := func(of []round) float64 { return bench.Percentile(bench.Figures(of, activeMS), 95) }
	return b.report.AddRow(suite, "create to Active, p95, among others", vms, "ms", p95(among)).CompareWith("alone", p95(alone))
}
