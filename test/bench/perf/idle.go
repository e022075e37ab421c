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

// flushed is how long after the last change events and similar writes have ended.
const flushed = 5 * time.Second

// idle measures the cost of VMs at rest, and how long one more takes among them,
// beside one in a cluster without others.
func (b *benchmark) idle(ctx context.Context) (err error) {
	alone, err := b.newWorld(ctx, apiAlone)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, alone.close()) }()
	for _, n := range b.Sizes {
		if n < 100 {
			continue
		}
		if err := b.idleOf(ctx, alone, n); err != nil {
			return err
		}
	}
	return nil
}

// idleOf uses a cluster of its own, so that VMs need not be deleted.
func (b *benchmark) idleOf(ctx context.Context, alone *world, n int) (err error) {
	w, err := b.newWorld(ctx, apiAlone)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p, err := w.drover(ctx, nil, "--vm-driver=fake")
	if err != nil {
		return err
	}
	if err := w.populate(ctx, p, n); err != nil {
		return p.stop(err)
	}
	if err := b.rest(ctx, w, p, n); err != nil {
		return p.stop(err)
	}
	return p.stop(b.among(ctx, alone, w, n))
}

// populate makes idle VMs, and waits until all that follows is over.
func (w *world) populate(ctx context.Context, p *process, n int) error {
	ctx, cancel := bounded(ctx, n)
	defer cancel()
	made, err := bench.MakeVMs(ctx, w.in(idleNamespace), n, w.b.AtOnce)
	if err != nil {
		return err
	}
	tell("%d idle VMs: Active after %s, settled after %s", n, made.Active, made.Settled)
	if err := bench.Pause(ctx, flushed); err != nil {
		return err
	}
	return w.quiet(ctx, p)
}

// rest measures while there is nothing to do.
func (b *benchmark) rest(ctx context.Context, w *world, p *process, n int) error {
	before, err := w.count(ctx, p, false)
	if err != nil {
		return err
	}
	begin := time.Now()
	if err := bench.Pause(ctx, b.Rest); err != nil {
		return err
	}
	minutes := time.Since(begin).Minutes()
	after, err := w.count(ctx, p, true)
	if err != nil {
		return err
	}
	memory, err := bench.MemoryOf(p.PID())
	if err != nil {
		return err
	}
	const suite = "idle"
	b.report.add(suite, "API writes to VMs at rest", n, "a minute", (after.writes-before.writes)/minutes).atMost("rest-writes", 0)
	b.report.add(suite, "engine calls at rest", n, "a minute", (after.calls-before.calls)/minutes)
	b.report.add(suite, "of these, lists", n, "a minute", (after.lists-before.lists)/minutes)
	cpu := b.report.add(suite, "CPU at rest", n, "% of one core", 100*(after.cpu-before.cpu)/(60*minutes))
	if n == 10000 {
		cpu.atMost("rest-cpu", 1)
	}
	b.report.add(suite, "allocated at rest", n, "MB a minute", (after.allocated-before.allocated)/1e6/minutes)
	b.report.add(suite, "resident memory, fake engine included", n, "MB", megabytes(memory.Resident))
	return nil
}

// among creates new VMs in both clusters by turns.
func (b *benchmark) among(ctx context.Context, alone, w *world, n int) (err error) {
	other, err := alone.drover(ctx, nil, "--vm-driver=fake")
	if err != nil {
		return err
	}
	defer func() { err = other.stop(err) }()
	for _, in := range []*world{alone, w} {
		if _, err := in.newVM(ctx, "warm"); err != nil {
			return err
		}
	}
	took := map[*world][]float64{}
	one := func(in *world) contender {
		return func(turn int) error {
			r, err := in.newVM(ctx, fmt.Sprintf("new-%d", turn))
			took[in] = append(took[in], milliseconds(r.active))
			return err
		}
	}
	if err := takeTurns(b.Samples, one(w), one(alone)); err != nil {
		return err
	}
	b.reportAmong("idle", took[alone], took[w], n, "among-fake", 10000)
	return nil
}
