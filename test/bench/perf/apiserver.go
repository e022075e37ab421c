// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// rateVMs is how many VMs the rates are measured with.
const rateVMs = 1000

// measureAPIServer measures how fast the API server accepts writes like those of users and
// controllers, without any watch.
func (b *benchmark) measureAPIServer(ctx context.Context) error {
	w, err := b.sharedEnvironment(ctx)
	if err != nil {
		return err
	}
	steps := []struct {
		what string
		do   func(*bench.VMs, context.Context, int) error
	}{
		{"create", (*bench.VMs).CreateNth},
		{"patch", patchFunc(`{"metadata":{"annotations":{"example.org/note":"patched"}}}`)},
		{"patch of the status", patchFunc(`{"status":{"phase":"Active","observedGeneration":1}}`, "status")},
		{"delete", (*bench.VMs).DeleteNth},
	}
	rates := make([][]float64, len(steps))
	for range b.Runs {
		for n, step := range steps {
			begin := time.Now()
			ctx, cancel := bench.WithTimeout(ctx, rateVMs)
			err := bench.ForEach(ctx, rateVMs, noopWorkers, func(ctx context.Context, n int) error { return step.do(w.vms, ctx, n) })
			cancel()
			if err != nil {
				return err
			}
			rates[n] = append(rates[n], rateVMs/time.Since(begin).Seconds())
		}
	}
	for n, step := range steps {
		b.report.AddRow("apiserver", step.what+", 16 at a time", rateVMs, "1/s", rates[n]...)
	}
	return nil
}
