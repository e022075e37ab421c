// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// requestTimeout bounds a request for a process's metrics.
const requestTimeout = 10 * time.Second

// readMetrics reads a page of metrics.
func readMetrics(ctx context.Context, address string) (framework.Metrics, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	return io.ReadAll(response.Body)
}

// vmWrites counts the API server's writes to VMs, users' among them.
func vmWrites(page framework.Metrics) (sum float64) {
	for _, verb := range []string{"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"} {
		sum += page.Sum("apiserver_request_total", fmt.Sprintf("verb=%q", verb), `resource="virtualmachines"`)
	}
	return sum
}

// engineCalls counts calls of drivers; method may be empty for all.
func engineCalls(page framework.Metrics, method string) float64 {
	return page.Sum("drover_driver_call_duration_seconds_count", `method="`+method)
}

// counts are what a controller has cost so far.
type counts struct {
	writes, calls, lists, cpu, allocated float64
}

// readCounts reads the costs. The CPU's are read last and first, so that reading is
// not counted.
func (w *environment) readCounts(ctx context.Context, p *process, cpuFirst bool) (c counts, err error) {
	if cpuFirst {
		c.cpu, err = cpuSeconds(p)
	}
	if err != nil {
		return c, err
	}
	api, err := w.apiMetrics(ctx)
	if err != nil {
		return c, err
	}
	own, err := p.readMetrics(ctx)
	if err != nil {
		return c, err
	}
	c.writes, c.calls, c.lists = vmWrites(api), engineCalls(own, ""), engineCalls(own, "List")
	c.allocated = own.Sum("go_memstats_alloc_bytes_total")
	if !cpuFirst {
		c.cpu, err = cpuSeconds(p)
	}
	return c, err
}

func cpuSeconds(p *process) (float64, error) {
	used, err := bench.CPUTime(p.PID())
	return used.Seconds(), err
}
