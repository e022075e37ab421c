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

// settleDelay is how long a process that has filled its caches may take to release
// memory.
const settleDelay = 5 * time.Second

// measureRestart measures how long a starting controller takes to know every VM's server,
// and its memory, beside a bare cache. Servers are in a folder, because those in
// memory end with the controller.
func (b *benchmark) measureRestart(ctx context.Context) error {
	for _, n := range append([]int{0}, b.Sizes...) {
		if n != 0 && n < 1000 {
			continue
		}
		if err := b.measureRestartSize(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// folderFlags are the flags by which servers outlive the controller.
func (w *environment) folderFlags() []string {
	return []string{"--vm-driver=fake", "--fake-dir=" + w.fakeDir("servers")}
}

// measureRestartSize uses a cluster of its own, so that VMs need not be deleted.
func (b *benchmark) measureRestartSize(ctx context.Context, n int) (err error) {
	w, err := b.newEnvironment(ctx, apiOnly)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.closeEnvironment()) }()
	p, err := w.startDrover(ctx, nil, w.folderFlags()...)
	if err != nil {
		return err
	}
	if n > 0 {
		err = w.createIdleVMs(ctx, p, n)
	}
	if err := p.stopWith(err); err != nil {
		return err
	}
	var ours, floor []start
	err = takeTurns(min(b.Runs, b.turnsFor(n)), func(int) error {
		s, err := w.startController(ctx, n)
		ours = append(ours, s)
		return err
	}, func(int) error {
		s, err := w.startCacheFloor(ctx)
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

// startController starts a controller beside its VMs and servers.
func (w *environment) startController(ctx context.Context, n int) (s start, err error) {
	begin := time.Now()
	p, err := w.startDrover(ctx, nil, w.folderFlags()...)
	if err != nil {
		return s, err
	}
	_, err = bench.Poll(readyTimeout, func() error { return p.checkAllReconciled(ctx, n) })
	s.known = time.Since(begin)
	if err == nil {
		s.memory, err = settledMemory(ctx, p)
	}
	return s, p.stopWith(err)
}

// checkAllReconciled returns nil once the engine was listed and every VM was reconciled.
func (p *process) checkAllReconciled(ctx context.Context, n int) error {
	page, err := p.readMetrics(ctx)
	if err != nil {
		return err
	}
	const controller = `controller="virtualmachine-fake"`
	seen := page.Sum("controller_runtime_reconcile_total", controller)
	waiting := page.Sum("workqueue_depth", controller)
	busy := page.Sum("controller_runtime_active_workers", controller)
	if page.Sum("drover_engine_up") != 1 || page.Sum("drover_servers") != float64(n) || seen < float64(n) || waiting+busy > 0 {
		return fmt.Errorf("%v VMs were reconciled, %v wait", seen, waiting+busy)
	}
	return nil
}

// startCacheFloor starts the floor.
func (w *environment) startCacheFloor(ctx context.Context) (s start, err error) {
	begin := time.Now()
	p, err := w.startFloor(floorCache)
	if err != nil {
		return s, err
	}
	s.known = time.Since(begin)
	s.memory, err = settledMemory(ctx, p)
	return s, p.stopWith(err)
}

func settledMemory(ctx context.Context, p *process) (bench.Memory, error) {
	if err := bench.Pause(ctx, settleDelay); err != nil {
		return bench.Memory{}, err
	}
	return bench.MemoryOf(p.PID())
}

func (b *benchmark) reportStarts(n int, ours, floor []start) {
	known := func(s start) float64 { return toMilliseconds(s.known) }
	resident := func(s start) float64 { return toMegabytes(s.memory.Resident) }
	anonymous := func(s start) float64 { return toMegabytes(s.memory.Anonymous) }
	b.report.addRow("restart", "start until every VM's server is known", n, "ms", selectFigures(ours, known)...).
		compareWith(floorCache, selectFigures(floor, known)...)
	row := b.report.addRow("restart", "resident memory", n, "MB", selectFigures(ours, resident)...).compareWith(floorCache, selectFigures(floor, resident)...)
	if n == 10000 {
		row.ratioAtMost("memory", 1.3)
	}
	b.report.addRow("restart", "of this, heap and stacks", n, "MB", selectFigures(ours, anonymous)...).compareWith(floorCache, selectFigures(floor, anonymous)...)
}
