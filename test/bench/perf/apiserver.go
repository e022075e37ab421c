// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

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
		do   func(ctx context.Context, n int) error
	}{
		{"create", func(ctx context.Context, n int) error {
			return bench.CreateVM(ctx, w.vms, bench.VMName(n))
		}},
		{"patch", func(ctx context.Context, n int) error {
			return w.patchVM(ctx, n, `{"metadata":{"annotations":{"example.org/note":"patched"}}}`)
		}},
		{"patch of the status", func(ctx context.Context, n int) error {
			return w.patchVM(ctx, n, `{"status":{"phase":"Active","observedGeneration":1}}`, "status")
		}},
		{"delete", func(ctx context.Context, n int) error {
			return w.vms.Delete(ctx, bench.VMName(n), metav1.DeleteOptions{})
		}},
	}
	rates := make([][]float64, len(steps))
	for range b.Runs {
		for n, step := range steps {
			rate, err := b.measureRate(ctx, step.do)
			if err != nil {
				return err
			}
			rates[n] = append(rates[n], rate)
		}
	}
	for n, step := range steps {
		b.report.addRow("apiserver", step.what+", 16 at a time", rateVMs, "1/s", rates[n]...)
	}
	return nil
}

// measureRate returns how many operations per second are done.
func (b *benchmark) measureRate(ctx context.Context, do func(ctx context.Context, n int) error) (float64, error) {
	ctx, cancel := withVMTimeout(ctx, rateVMs)
	defer cancel()
	begin := time.Now()
	err := bench.ForEach(ctx, rateVMs, noopWorkers, do)
	return rateVMs / time.Since(begin).Seconds(), err
}

func (w *environment) patchVM(ctx context.Context, n int, change string, sub ...string) error {
	_, err := w.vms.Patch(ctx, bench.VMName(n), types.MergePatchType, []byte(change), metav1.PatchOptions{}, sub...)
	return err
}
