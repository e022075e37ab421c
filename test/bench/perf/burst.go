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
	w, err := b.newEnvironment(ctx, framework.ClusterOptions{
		Durable: true, WithController: true, Args: append([]string{"--vm-driver=fake"}, b.UpFlags...),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.closeEnvironment()) }()
	for _, stage := range []struct {
		what string
		do   func() error
	}{
		{"ready", func() error { return bench.AwaitQuiet(ctx, w.cluster.PID()) }},
		{"all Active", func() error { return w.reportDuration(ctx, activeText, w.createVMs) }},
		{"all gone", func() error { return w.reportDuration(ctx, "delete all", w.deleteVMs) }},
		{"a minute later", func() error { return bench.Pause(ctx, burstRests[0]) }},
		{burstEnd, func() error { return bench.Pause(ctx, burstRests[1]) }},
	} {
		if err := stage.do(); err != nil {
			return err
		}
		if err := w.reportMemory(stage.what); err != nil {
			return err
		}
	}
	return nil
}

const burstEnd = "five minutes after"

// burstRests follow the deletion of the VMs: the first minute, and the rest of five.
var burstRests = []time.Duration{time.Minute, 4 * time.Minute}

// reportDuration applies an operation to all VMs and reports how long it took.
func (w *environment) reportDuration(ctx context.Context, what string, do func(context.Context, int) (time.Duration, error)) error {
	took, err := do(ctx, w.benchmark.Burst)
	if err == nil {
		w.benchmark.report.addRow("burst", what, w.benchmark.Burst, "s", took.Seconds())
	}
	return err
}

// reportMemory reports the memory of drover up.
func (w *environment) reportMemory(stage string) error {
	m, err := bench.MemoryOf(w.cluster.PID())
	if err != nil {
		return err
	}
	row := w.benchmark.report.addRow("burst", "resident memory of drover up, "+stage, w.benchmark.Burst, "MB", toMegabytes(m.Resident))
	if stage == burstEnd && w.benchmark.Burst == 10000 {
		row.atMost("burst", 600)
	}
	w.benchmark.report.addRow("burst", "of this, heap and stacks, "+stage, w.benchmark.Burst, "MB", toMegabytes(m.Anonymous))
	w.benchmark.report.addRow("burst", "of this, files, "+stage, w.benchmark.Burst, "MB", toMegabytes(m.Resident-m.Anonymous))
	return nil
}
