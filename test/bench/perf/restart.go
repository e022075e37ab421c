// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/test/bench"
)

const (
	// settleDelay is the time for a process to release memory after it has filled its
	// caches.
	settleDelay = 5 * time.Second
	// knownTimeout bounds the wait until the controller knows all servers.
	knownTimeout = 2 * time.Minute

	residentText = "resident memory"

	// residentAim bounds the resident memory with residentVMs VMs, in multiples of floorCache's.
	residentAim = 1.3
	residentVMs = 10000
)

// measureRestart measures how long a starting controller takes to know every VM's server, and its
// memory, and compares both with floorCache. Each number of VMs has a separate cluster.
func measureRestart(ctx context.Context, r *bench.Report) error {
	for _, n := range r.Sizes {
		measure := bench.In(noController, func(ctx context.Context, e *bench.Environment) error {
			return measureStarts(ctx, e, n)
		})
		if err := measure(ctx, r); err != nil {
			return err
		}
	}
	return nil
}

func measureStarts(ctx context.Context, e *bench.Environment, n int) error {
	// Servers are in a folder, because those in memory end with the controller.
	args := []string{"--vm-driver=fake", "--fake-dir=" + filepath.Join(e.Temp, "servers")}
	if err := e.WithController(ctx, func(p *bench.Controller) error { return createIdleVMs(ctx, e, p, n) }, args...); err != nil {
		return err
	}
	startOurs := func() (*bench.Controller, error) {
		p, err := e.StartController(ctx, nil, args...)
		if err != nil {
			return p, err
		}
		if _, err := bench.Poll(knownTimeout, func() error { return checkAllReconciled(ctx, p, n) }); err != nil {
			return p, p.StopWith(err)
		}
		return p, nil
	}
	startFloor := func() (*bench.Controller, error) { return e.StartFloor(floorCache) }
	var ours, floor []start
	err := bench.TakeTurns(e.TurnsWith(n), measureStart(ctx, &ours, startOurs), measureStart(ctx, &floor, startFloor))
	if err == nil {
		reportStarts(e.Report, n, ours, floor)
	}
	return err
}

// start is the duration of a start, and the memory after it.
type start struct {
	known  time.Duration
	memory bench.Memory
}

// measureStart returns a contender that runs a process until it knows all servers, and a while longer.
func measureStart(ctx context.Context, starts *[]start, run func() (*bench.Controller, error)) bench.Contender {
	return func(int) error {
		begin := time.Now()
		p, err := run()
		if err != nil {
			return err
		}
		s := start{known: time.Since(begin)}
		if err = bench.Pause(ctx, settleDelay); err == nil {
			s.memory, err = bench.MemoryOf(p.PID())
		}
		*starts = append(*starts, s)
		return p.StopWith(err)
	}
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

func reportStarts(r *bench.Report, n int, ours, floor []start) {
	for _, f := range []struct {
		what, unit string
		of         func(start) float64
	}{
		{"start until every VM's server is known", "ms", func(s start) float64 { return bench.Milliseconds(s.known) }},
		{residentText, "MB", func(s start) float64 { return bench.Megabytes(s.memory.Resident) }},
		{"of this, heap and stacks", "MB", func(s start) float64 { return bench.Megabytes(s.memory.Anonymous) }},
	} {
		row := r.AddRow(f.what, n, f.unit, bench.Figures(ours, f.of)...).CompareWith(floorCache, bench.Figures(floor, f.of)...)
		if n == residentVMs && f.what == residentText {
			row.RatioAtMost(residentAim)
		}
	}
}
