// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"time"

	"cloudnative.tw/drover/test/bench"
)

const (
	// parallelMachines is how many machines are created at a time.
	parallelMachines = 4
	// settleDelay is how long a started controller needs to reconcile all machines.
	settleDelay = 3 * time.Second
)

// measureMemory measures how much memory a controller needs for machines that exist when it starts.
func (b *benchmark) measureMemory(ctx context.Context) error {
	without, err := b.measureStarts(ctx)
	if err != nil {
		return err
	}
	b.AddRow("heap and stacks of the controller", 0, "MB", without...)
	for _, n := range b.Sizes {
		if err := b.withAll(ctx, n, b.VMs.CreateMany); err != nil {
			return err
		}
		with, err := b.measureStarts(ctx)
		if err != nil {
			return err
		}
		b.AddRow("heap and stacks of the controller", n, "MB", with...)
		b.AddRow("of these, for each machine", n, "KB", 1000*(bench.Median(with)-bench.Median(without))/float64(n))
		if err := b.withAll(ctx, n, b.VMs.DeleteMany); err != nil {
			return err
		}
	}
	return nil
}

// withAll runs a controller during an operation on all machines.
func (b *benchmark) withAll(ctx context.Context, n int, do func(context.Context, int) (time.Duration, error)) error {
	return b.WithController(ctx, func(*bench.Controller) error {
		_, err := do(ctx, n)
		return err
	}, b.args...)
}

// measureStarts returns the memory of several controllers, in MB: heap and stacks.
func (b *benchmark) measureStarts(ctx context.Context) (all []float64, err error) {
	for range b.Turns {
		if err := b.WithController(ctx, func(c *bench.Controller) error {
			if err := bench.Pause(ctx, settleDelay); err != nil {
				return err
			}
			if err := b.AwaitQuiet(ctx, c); err != nil {
				return err
			}
			memory, err := bench.MemoryOf(c.PID())
			all = append(all, bench.Megabytes(memory.Anonymous))
			return err
		}, b.args...); err != nil {
			return nil, err
		}
	}
	return all, nil
}
