// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"time"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// measureUp measures how long drover up takes until everything is ready, controller
// included: cold, with an empty data folder, and warm, with the same again.
func (b *benchmark) measureUp(ctx context.Context) error {
	var cold, warm, memory []float64
	for range b.Runs {
		if err := ctx.Err(); err != nil {
			return err
		}
		one, two, size, err := startTwice()
		if err != nil {
			return err
		}
		cold, warm, memory = append(cold, one.Seconds()), append(warm, two.Seconds()), append(memory, bench.Megabytes(size.Resident))
	}
	b.report.AddRow("up", "drover up, cold, until ready", 0, "s", cold...)
	b.report.AddRow("up", "drover up, warm, until ready", 0, "s", warm...)
	b.report.AddRow("up", "resident memory of drover up, then", 0, "MB", memory...)
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
