// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// measureAPIServer measures how fast the API server accepts the writes of users and
// controllers while nobody watches.
func measureAPIServer(ctx context.Context, e *bench.Environment) error {
	steps := []struct {
		what string
		do   bench.Step
	}{
		{"create", (*bench.VMs).CreateNth},
		{"patch", patchWith(`{"metadata":{"annotations":{"example.org/note":"patched"}}}`)},
		{"patch of the status", patchWith(`{"status":{"phase":"Active","observedGeneration":1}}`, "status")},
		{"delete", (*bench.VMs).DeleteNth},
	}
	for _, count := range e.Sizes {
		rates := make([]bench.Runs, len(steps))
		for range e.Turns {
			for n, step := range steps {
				begin := time.Now()
				if err := e.VMs.Each(ctx, count, step.do); err != nil {
					return err
				}
				rates[n] = append(rates[n], float64(count)/time.Since(begin).Seconds())
			}
		}
		for n, step := range steps {
			e.AddRow(step.what+", 16 at a time", count, "1/s", rates[n]...)
		}
	}
	return nil
}
