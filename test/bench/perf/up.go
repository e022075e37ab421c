// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package perf

import (
	"context"
	"errors"
	"os"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// measureUp measures how long drover up takes until everything, including the controller, is
// ready: cold, with an empty data dir, and warm, with the same data dir again.
func measureUp(ctx context.Context, r *bench.Report) error {
	var cold, warm, memory []float64
	for range r.Turns {
		if err := ctx.Err(); err != nil {
			return err
		}
		first, second, used, err := startTwice()
		if err != nil {
			return err
		}
		cold, warm, memory = append(cold, first.Seconds()), append(warm, second.Seconds()), append(memory, bench.Megabytes(used.Resident))
	}
	r.AddRow("drover up, cold, until ready", 0, "s", cold...)
	r.AddRow("drover up, warm, until ready", 0, "s", warm...)
	r.AddRow("resident memory of drover up, then", 0, "MB", memory...)
	return nil
}

func startTwice() (cold, warm time.Duration, memory bench.Memory, err error) {
	dir, err := os.MkdirTemp("", "drover-bench-")
	if err != nil {
		return 0, 0, memory, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	begin := time.Now()
	c, err := framework.NewCluster(framework.ClusterOptions{DataDir: dir, WithController: true, Durable: true})
	if err != nil {
		return 0, 0, memory, err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	cold = time.Since(begin)
	if err := c.Stop(); err != nil {
		return 0, 0, memory, err
	}
	begin = time.Now()
	if err := c.Start(); err != nil {
		return 0, 0, memory, err
	}
	warm = time.Since(begin)
	memory, err = bench.MemoryOf(c.PID())
	return cold, warm, memory, err
}

// measureBurst measures the memory of one drover up, which runs Drover, etcd and
// kube-apiserver in one process: before many VMs are created, while they are Active, when
// they are gone, and some minutes later.
func measureBurst(ctx context.Context, e *bench.Environment) error {
	pause := func(d time.Duration) func() (time.Duration, error) {
		return func() (time.Duration, error) { return 0, bench.Pause(ctx, d) }
	}
	for _, n := range e.Sizes {
		for _, stage := range []struct {
			what string
			do   func() (time.Duration, error)
		}{
			{"ready", func() (time.Duration, error) { return 0, bench.AwaitQuiet(ctx, e.PID()) }},
			{"all Active", func() (time.Duration, error) { return e.VMs.CreateMany(ctx, n) }},
			{"all gone", func() (time.Duration, error) { return e.VMs.DeleteMany(ctx, n) }},
			{"a minute later", pause(time.Minute)},
			{"five minutes after", pause(4 * time.Minute)},
		} {
			took, err := stage.do()
			if err != nil {
				return err
			}
			m, err := bench.MemoryOf(e.PID())
			if err != nil {
				return err
			}
			if took > 0 {
				e.AddRow("until "+stage.what, n, "s", took.Seconds())
			}
			e.AddRow("resident memory of drover up, "+stage.what, n, "MB", bench.Megabytes(m.Resident))
			e.AddRow("of this, heap and stacks, "+stage.what, n, "MB", bench.Megabytes(m.Anonymous))
		}
	}
	return nil
}
