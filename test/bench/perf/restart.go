// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

const (
	// settleDelay is how long a process that has filled its caches may take to release
	// memory.
	settleDelay = 5 * time.Second
	// knownTimeout is how long it may take until all servers are known.
	knownTimeout = 2 * time.Minute

	residentText = "resident memory"
)

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

// startInFolder starts a controller that its servers outlive.
func (w *environment) startInFolder(ctx context.Context) (*bench.Controller, error) {
	return w.startDrover(ctx, nil, "--vm-driver=fake", "--fake-dir="+filepath.Join(w.Temp, "servers"))
}

// measureRestartSize uses a cluster of its own, so that VMs need not be deleted.
func (b *benchmark) measureRestartSize(ctx context.Context, n int) (err error) {
	w, err := b.newEnvironment(ctx, framework.ClusterOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	p, err := w.startInFolder(ctx)
	if err != nil {
		return err
	}
	if n > 0 {
		err = w.createIdleVMs(ctx, p, n)
	}
	if err := p.StopWith(err); err != nil {
		return err
	}
	starts := map[string][]start{}
	measure := func(name string, run func() (*bench.Controller, error)) bench.Contender {
		return func(int) error {
			s, err := measureStart(ctx, run)
			starts[name] = append(starts[name], s)
			return err
		}
	}
	err = bench.TakeTurns(min(b.Runs, b.turnsFor(n)), measure("", func() (*bench.Controller, error) {
		p, err := w.startInFolder(ctx)
		if err == nil {
			_, err = bench.Poll(knownTimeout, func() error { return checkAllReconciled(ctx, p, n) })
		}
		return p, err
	}), measure(floorCache, func() (*bench.Controller, error) { return w.StartFloor(floorCache) }))
	if err == nil {
		b.reportStarts(n, starts[""], starts[floorCache])
	}
	return err
}

// start is the duration of a start, and its result.
type start struct {
	known  time.Duration
	memory bench.Memory
}

// measureStart runs a process until it knows all, and a while longer.
func measureStart(ctx context.Context, run func() (*bench.Controller, error)) (s start, err error) {
	begin := time.Now()
	p, err := run()
	s.known = time.Since(begin)
	if p == nil {
		return s, err
	}
	if err == nil {
		err = bench.Pause(ctx, settleDelay)
	}
	if err == nil {
		s.memory, err = bench.MemoryOf(p.PID())
	}
	return s, p.StopWith(err)
}

// checkAllReconciled returns nil once the engine was listed and every VM was reconciled.
func checkAllReconciled(ctx context.Context, p *bench.Controller, n int) error {
	page, err := p.Metrics(ctx)
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

func (b *benchmark) reportStarts(n int, ours, floor []start) {
	for _, f := range []struct {
		what, unit string
		of         func(start) float64
	}{
		{"start until every VM's server is known", "ms", func(s start) float64 { return bench.Milliseconds(s.known) }},
		{residentText, "MB", func(s start) float64 { return bench.Megabytes(s.memory.Resident) }},
		{"of this, heap and stacks", "MB", func(s start) float64 { return bench.Megabytes(s.memory.Anonymous) }},
	} {
		row := b.report.AddRow("restart", f.what, n, f.unit, bench.Figures(ours, f.of)...).CompareWith(floorCache, bench.Figures(floor, f.of)...)
		if n == 10000 && f.what == residentText {
			row.RatioAtMost(1.3)
		}
	}
}
