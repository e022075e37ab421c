// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/vmtest"
)

// settleTime is how long a process that has filled its caches may take to release
// memory.
const settleTime = 5 * time.Second

// restart measures how long a starting controller takes to know every VM's server,
// and its memory, beside a bare cache. Servers are in a folder, because those in
// memory end with the controller.
func (b *benchmark) restart(ctx context.Context) error {
	for _, n := range append([]int{0}, b.Sizes...) {
		if n != 0 && n < 1000 {
			continue
		}
		if err := b.restartOf(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// inFolder are the flags by which servers outlive the controller.
func (w *world) inFolder() []string {
	return []string{"--vm-driver=fake", "--fake-dir=" + w.fakeDir("servers")}
}

// restartOf uses a cluster of its own, so that VMs need not be deleted.
func (b *benchmark) restartOf(ctx context.Context, n int) (err error) {
	w, err := b.newWorld(ctx, apiAlone)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p, err := w.drover(ctx, nil, w.inFolder()...)
	if err != nil {
		return err
	}
	if n > 0 {
		err = w.populate(ctx, p, n)
	}
	if err := p.stop(err); err != nil {
		return err
	}
	var ours, floor []start
	err = takeTurns(min(b.Runs, b.pairs(n)), func(int) error {
		s, err := w.start(ctx, n)
		ours = append(ours, s)
		return err
	}, func(int) error {
		s, err := w.startCache(ctx)
		floor = append(floor, s)
		return err
	})
	if err != nil {
		return err
	}
	b.reportStarts(n, ours, floor)
	return nil
}

// start is the duration of a start, and its result.
type start struct {
	known  time.Duration
	memory bench.Memory
}

// start starts a controller beside its VMs and servers.
func (w *world) start(ctx context.Context, n int) (s start, err error) {
	begin := time.Now()
	p, err := w.drover(ctx, nil, w.inFolder()...)
	if err != nil {
		return s, err
	}
	_, err = vmtest.Poll(readyWithin, func() error { return p.knows(ctx, n) })
	s.known = time.Since(begin)
	if err == nil {
		s.memory, err = settled(ctx, p)
	}
	return s, p.stop(err)
}

// knows returns nil once the engine was listed and every VM was reconciled.
func (p *process) knows(ctx context.Context, n int) error {
	page, err := p.scrape(ctx)
	if err != nil {
		return err
	}
	const lane = `controller="virtualmachine-fake"`
	seen := page.Sum("controller_runtime_reconcile_total", lane)
	waiting := page.Sum("workqueue_depth", lane)
	busy := page.Sum("controller_runtime_active_workers", lane)
	if page.Sum("drover_engine_up") != 1 || page.Sum("drover_servers") != float64(n) || seen < float64(n) || waiting+busy > 0 {
		return fmt.Errorf("%v VMs were looked at, %v wait", seen, waiting+busy)
	}
	return nil
}

// startCache starts the floor.
func (w *world) startCache(ctx context.Context) (s start, err error) {
	begin := time.Now()
	p, err := w.floor(floorCache)
	if err != nil {
		return s, err
	}
	s.known = time.Since(begin)
	s.memory, err = settled(ctx, p)
	return s, p.stop(err)
}

func settled(ctx context.Context, p *process) (bench.Memory, error) {
	if err := bench.Pause(ctx, settleTime); err != nil {
		return bench.Memory{}, err
	}
	return bench.MemoryOf(p.PID())
}

func (b *benchmark) reportStarts(n int, ours, floor []start) {
	known := func(s start) float64 { return milliseconds(s.known) }
	resident := func(s start) float64 { return megabytes(s.memory.Resident) }
	anonymous := func(s start) float64 { return megabytes(s.memory.Anonymous) }
	b.report.add("restart", "start until every VM's server is known", n, "ms", each(ours, known)...).
		beside(floorCache, each(floor, known)...)
	row := b.report.add("restart", "resident memory", n, "MB", each(ours, resident)...).beside(floorCache, each(floor, resident)...)
	if n == 10000 {
		row.ratioAtMost("memory", 1.3)
	}
	b.report.add("restart", "of this, heap and stacks", n, "MB", each(ours, anonymous)...).beside(floorCache, each(floor, anonymous)...)
}
