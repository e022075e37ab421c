// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/vmtest"
)

// burst measures what many VMs leave behind in the memory of one drover up, which
// contains Drover, etcd and kube-apiserver in one process: before them, while they
// are Active, when they are gone, and after rests.
func (b *benchmark) burst(ctx context.Context) (err error) {
	w, err := b.newWorld(ctx, vmtest.ClusterOptions{
		Durable: true, WithController: true, Args: append([]string{"--vm-driver=fake"}, b.UpFlags...),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	for _, stage := range []struct {
		what string
		do   func() error
	}{
		{"ready", func() error { return bench.AwaitQuiet(ctx, w.cluster.PID()) }},
		{"all Active", func() error { return w.timed(ctx, activeText, w.create) }},
		{"all gone", func() error { return w.timed(ctx, "delete all", w.delete) }},
		{"a minute later", func() error { return bench.Pause(ctx, burstRests[0]) }},
		{burstEnd, func() error { return bench.Pause(ctx, burstRests[1]) }},
	} {
		if err := stage.do(); err != nil {
			return err
		}
		if err := w.weigh(stage.what); err != nil {
			return err
		}
	}
	return nil
}

const burstEnd = "five minutes after"

// burstRests follow the deletion of the VMs: the first minute, and the rest of five.
var burstRests = []time.Duration{time.Minute, 4 * time.Minute}

// timed applies an operation to all VMs and reports how long it took.
func (w *world) timed(ctx context.Context, what string, do func(context.Context, int) (time.Duration, error)) error {
	took, err := do(ctx, w.b.Burst)
	if err == nil {
		w.b.report.add("burst", what, w.b.Burst, "s", took.Seconds())
	}
	return err
}

// weigh reports the memory of drover up.
func (w *world) weigh(stage string) error {
	m, err := bench.MemoryOf(w.cluster.PID())
	if err != nil {
		return err
	}
	row := w.b.report.add("burst", "resident memory of drover up, "+stage, w.b.Burst, "MB", megabytes(m.Resident))
	if stage == burstEnd && w.b.Burst == 10000 {
		row.atMost("burst", 600)
	}
	w.b.report.add("burst", "of this, heap and stacks, "+stage, w.b.Burst, "MB", megabytes(m.Anonymous))
	w.b.report.add("burst", "of this, files, "+stage, w.b.Burst, "MB", megabytes(m.Resident-m.Anonymous))
	return nil
}
