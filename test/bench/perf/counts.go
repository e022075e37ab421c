// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// vmWrites counts the API server's writes to VMs, users' among them.
func vmWrites(page framework.Metrics) (sum float64) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		sum += page.Sum("apiserver_request_total", fmt.Sprintf("verb=%q", verb), `resource="virtualmachines"`)
	}
	return sum
}

// counts are what a controller costs.
type counts struct{ writes, calls, cpu, allocated float64 }

// countDuring returns what an operation costs. Reading is not counted into the CPU time.
func (w *environment) countDuring(ctx context.Context, p *bench.Controller, do func() error) (counts, error) {
	before, err := w.readCounts(ctx, p)
	if err != nil {
		return before, err
	}
	begin, err := bench.CPUTime(p.PID())
	if err == nil {
		err = do()
	}
	if err != nil {
		return before, err
	}
	end, err := bench.CPUTime(p.PID())
	after, readErr := w.readCounts(ctx, p)
	return counts{
		after.writes - before.writes, after.calls - before.calls, (end - begin).Seconds(), after.allocated - before.allocated,
	}, errors.Join(err, readErr)
}

func (w *environment) readCounts(ctx context.Context, p *bench.Controller) (counts, error) {
	api, err := w.APIMetrics(ctx)
	own, ownErr := p.Metrics(ctx)
	return counts{
		writes: vmWrites(api), calls: own.Sum("drover_driver_call_duration_seconds_count"),
		allocated: own.Sum("go_memstats_alloc_bytes_total"),
	}, errors.Join(err, ownErr)
}
