// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"errors"
	"fmt"
	"time"

	"cloudnative.tw/drover/test/bench"
)

const (
	// flushDelay is how long events and other late writes may take after the last change.
	flushDelay = 5 * time.Second
	// restTime is how long VMs at rest are measured.
	restTime = time.Minute
)

// measureIdle measures the cost of VMs at rest. It also compares how long a new VM takes among
// them and in a cluster without others. Each number of VMs has a separate cluster, so that the
// VMs need not be deleted.
func measureIdle(ctx context.Context, alone *bench.Environment) error {
	for _, n := range alone.Sizes {
		if err := bench.In(noController, func(ctx context.Context, e *bench.Environment) error {
			return e.WithController(ctx, func(p *bench.Controller) error {
				if err := createIdleVMs(ctx, e, p, n); err != nil {
					return err
				}
				return errors.Join(measureRest(ctx, e, p, n), measureNewVMs(ctx, alone, e, n))
			}, "--vm-driver=fake")
		})(ctx, alone.Report); err != nil {
			return err
		}
	}
	return nil
}

// createIdleVMs creates idle VMs, and waits until no work is left.
func createIdleVMs(ctx context.Context, e *bench.Environment, p *bench.Controller, n int) error {
	if n == 0 {
		return nil
	}
	if err := e.Idle.CreateSettled(ctx, n); err != nil {
		return err
	}
	if err := bench.Pause(ctx, flushDelay); err != nil {
		return err
	}
	return e.AwaitQuiet(ctx, p)
}

// measureRest measures the controller while there is nothing to do.
func measureRest(ctx context.Context, e *bench.Environment, p *bench.Controller, n int) error {
	took, err := measureCosts(ctx, e, p, func() error { return bench.Pause(ctx, restTime) })
	if err != nil {
		return err
	}
	memory, err := bench.MemoryOf(p.PID())
	if err != nil {
		return err
	}
	minutes := restTime.Minutes()
	e.AddRow("API writes to VMs at rest", n, "a minute", took.writes/minutes).AtMost(0)
	e.AddRow("engine calls at rest", n, "a minute", took.calls/minutes)
	cpu := e.AddRow("CPU at rest", n, "% of one core", 100*took.cpu/(60*minutes))
	if n == 10000 {
		cpu.AtMost(1)
	}
	e.AddRow("allocated at rest", n, "MB a minute", took.allocated/1e6/minutes)
	e.AddRow("resident memory, fake engine included", n, "MB", bench.Megabytes(memory.Resident))
	return nil
}

// measureNewVMs creates new VMs alternately in both clusters.
func measureNewVMs(ctx context.Context, alone, among *bench.Environment, n int) error {
	return alone.WithController(ctx, func(*bench.Controller) error {
		var took [2][]round
		var contenders []bench.Contender
		for at, in := range []*bench.Environment{among, alone} {
			if _, err := newVM(ctx, in, "warm"); err != nil {
				return err
			}
			contenders = append(contenders, func(turn int) error {
				r, err := newVM(ctx, in, fmt.Sprintf("new-%d", turn))
				took[at] = append(took[at], r)
				return err
			})
		}
		if err := bench.TakeTurns(alone.Turns, contenders...); err != nil {
			return err
		}
		if row := reportAmong(alone, took[1], took[0], n); n == 10000 {
			row.RatioAtMost(1.2)
		}
		return nil
	}, "--vm-driver=fake")
}

// newVM creates a VM and deletes it.
func newVM(ctx context.Context, e *bench.Environment, name string) (r round, err error) {
	r.active, r.gone, err = e.VMs.NewOne(ctx, name, func(ctx context.Context) error { return bench.AwaitQuiet(ctx, e.PID()) })
	return r, err
}

// reportAmong compares a new VM among others with one alone.
func reportAmong(e *bench.Environment, alone, among []round, vms int) *bench.Row {
	p95 := func(of []round) float64 { return bench.Percentile(bench.Figures(of, activeMS), 95) }
	return e.AddRow("create to Active, p95, among others", vms, "ms", p95(among)).CompareWith("alone", p95(alone))
}
