// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// flushDelay is how long after the last change events and similar writes have ended.
const flushDelay = 5 * time.Second

// measureIdle measures the cost of VMs at rest, and how long one more takes among them,
// beside one in a cluster without others.
func (b *benchmark) measureIdle(ctx context.Context) (err error) {
	alone, err := b.newEnvironment(ctx, apiOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.closeEnvironment()) }()
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
	w, err := b.newEnvironment(ctx, apiOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.closeEnvironment()) }()
	p, err := w.startDrover(ctx, nil, "--vm-driver=fake")
	if err != nil {
		return err
	}
	if err := w.createIdleVMs(ctx, p, n); err != nil {
		return p.stopWith(err)
	}
	if err := b.measureRest(ctx, w, p, n); err != nil {
		return p.stopWith(err)
	}
	return p.stopWith(b.measureNewVMs(ctx, alone, w, n))
}

// createIdleVMs makes idle VMs, and waits until all that follows is over.
func (w *environment) createIdleVMs(ctx context.Context, p *process, n int) error {
	ctx, cancel := withVMTimeout(ctx, n)
	defer cancel()
	made, err := bench.CreateAndSettle(ctx, w.vmsIn(idleNamespace), n, w.benchmark.AtOnce)
	if err != nil {
		return err
	}
	bench.Logf("%d idle VMs: Active after %s, settled after %s", n, made.Active, made.Settled)
	if err := bench.Pause(ctx, flushDelay); err != nil {
		return err
	}
	return w.waitUntilQuiet(ctx, p)
}

// measureRest measures while there is nothing to do.
func (b *benchmark) measureRest(ctx context.Context, w *environment, p *process, n int) error {
	before, err := w.readCounts(ctx, p, false)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := bench.Pause(ctx, b.Rest); err != nil {
		return err
	}
	minutes := time.Since(begin).Minutes()
	after, err := w.readCounts(ctx, p, true)
	if err != nil {
		return err
	}
	memory, err := bench.MemoryOf(p.PID())
	if err != nil {
		return err
	}
	const suite = "idle"
	b.report.addRow(suite, "API writes to VMs at rest", n, "a minute", (after.writes-before.writes)/minutes).atMost("rest-writes", 0)
	b.report.addRow(suite, "engine calls at rest", n, "a minute", (after.calls-before.calls)/minutes)
	b.report.addRow(suite, "of these, lists", n, "a minute", (after.lists-before.lists)/minutes)
	cpu := b.report.addRow(suite, "CPU at rest", n, "% of one core", 100*(after.cpu-before.cpu)/(60*minutes))
	if n == 10000 {
		cpu.atMost("rest-cpu", 1)
	}
	b.report.addRow(suite, "allocated at rest", n, "MB a minute", (after.allocated-before.allocated)/1e6/minutes)
	b.report.addRow(suite, "resident memory, fake engine included", n, "MB", toMegabytes(memory.Resident))
	return nil
}

// measureNewVMs creates new VMs in both clusters by turns.
func (b *benchmark) measureNewVMs(ctx context.Context, alone, w *environment, n int) (err error) {
	other, err := alone.startDrover(ctx, nil, "--vm-driver=fake")
	if err != nil {
		return err
	}
	defer func() { err = other.stopWith(err) }()
	for _, in := range []*environment{alone, w} {
		if _, err := in.newVM(ctx, "warm"); err != nil {
			return err
		}
	}
	took := map[*environment][]float64{}
	one := func(in *environment) contender {
		return func(turn int) error {
			r, err := in.newVM(ctx, fmt.Sprintf("new-%d", turn))
			took[in] = append(took[in], toMilliseconds(r.active))
			return err
		}
	}
	if err := takeTurns(b.Samples, one(w), one(alone)); err != nil {
		return err
	}
	b.reportAmong("idle", took[alone], took[w], n, "among-fake", 10000)
	return nil
}
