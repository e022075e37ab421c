// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// measureBurst measures what many VMs leave behind in the memory of one drover up, which
// contains Drover, etcd and kube-apiserver in one process: before them, while they
// are Active, when they are gone, and after rests.
func (b *benchmark) measureBurst(ctx context.Context) (err error) {
	w, err := b.newEnvironment(ctx, framework.ClusterOptions{WithController: true, Args: []string{"--vm-driver=fake"}})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, stage := range []struct {
		what string
		do   func() error
	}{
		{"ready", func() error { return bench.AwaitQuiet(ctx, w.PID()) }},
		{"all Active", func() error { return w.reportDuration(ctx, activeText, w.vms.CreateMany) }},
		{"all gone", func() error { return w.reportDuration(ctx, goneText, w.vms.DeleteMany) }},
		{"a minute later", func() error { return bench.Pause(ctx, time.Minute) }},
		{"five minutes after", func() error { return bench.Pause(ctx, 4*time.Minute) }},
	} {
		if err := stage.do(); err != nil {
			return err
		}
		m, err := bench.MemoryOf(w.PID())
		if err != nil {
			return err
		}
		b.report.AddRow("burst", "resident memory of drover up, "+stage.what, b.Burst, "MB", bench.Megabytes(m.Resident))
		b.report.AddRow("burst", "of this, heap and stacks, "+stage.what, b.Burst, "MB", bench.Megabytes(m.Anonymous))
	}
	return nil
}

// reportDuration applies an operation to all VMs and reports how long it took.
func (w *environment) reportDuration(ctx context.Context, what string, do func(context.Context, int) (time.Duration, error)) error {
	took, err := do(ctx, w.benchmark.Burst)
	if err == nil {
		w.benchmark.report.AddRow("burst", what, w.benchmark.Burst, "s", took.Seconds())
	}
	return err
}
