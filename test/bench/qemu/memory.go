// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"time"

	"cloudnative.tw/drover/test/bench"
)

const (
	// parallelMachines are made at a time.
	parallelMachines = 4
	// settleDelay is how long after its start a controller has reconciled all machines.
	settleDelay = 3 * time.Second
)

// measureMemory measures what machines add to a controller that finds them at its start.
func (b *benchmark) measureMemory(ctx context.Context) error {
	without, err := b.measureStarts(ctx)
	if err != nil {
		return err
	}
	bench.Logf("Creating %d machines", b.Machines)
	if err := b.withController(ctx, b.vms.CreateMany); err != nil {
		return err
	}
	with, err := b.measureStarts(ctx)
	if err != nil {
		return err
	}
	b.report.AddRow(suite, "heap and stacks of the controller", 0, "MB", without...)
	b.report.AddRow(suite, "heap and stacks of the controller", b.Machines, "MB", with...)
	each := 1000 * (bench.Median(with) - bench.Median(without)) / float64(b.Machines)
	b.report.AddRow(suite, "of these, for each machine", b.Machines, "KB", each)
	return b.withController(ctx, b.vms.DeleteMany)
}

// withController runs a controller during an operation on all machines.
func (b *benchmark) withController(ctx context.Context, do func(context.Context, int) (time.Duration, error)) error {
	c, err := b.startController(ctx)
	if err != nil {
		return err
	}
	_, err = do(ctx, b.Machines)
	return c.StopWith(err)
}

// measureStarts returns the memory of several controllers, in MB: heap and stacks.
func (b *benchmark) measureStarts(ctx context.Context) ([]float64, error) {
	var all []float64
	for range b.Starts {
		c, err := b.startController(ctx)
		if err != nil {
			return nil, err
		}
		memory, err := b.measureStart(ctx, c)
		if err := c.StopWith(err); err != nil {
			return nil, err
		}
		all = append(all, bench.Megabytes(memory.Anonymous))
	}
	return all, nil
}

func (b *benchmark) measureStart(ctx context.Context, c *bench.Controller) (bench.Memory, error) {
	if err := bench.Pause(ctx, settleDelay); err != nil {
		return bench.Memory{}, err
	}
	if err := b.AwaitQuiet(ctx, c); err != nil {
		return bench.Memory{}, err
	}
	return bench.MemoryOf(c.PID())
}
