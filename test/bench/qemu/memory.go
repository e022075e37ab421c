// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
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
	if err := b.withController(ctx, func(ctx context.Context) error { return b.createAll(ctx) }); err != nil {
		return err
	}
	with, err := b.measureStarts(ctx)
	if err != nil {
		return err
	}
	b.report.addMemory(without, with)
	return b.withController(ctx, func(ctx context.Context) error {
		return bench.ForEach(ctx, b.Machines, parallelMachines, func(ctx context.Context, n int) error { return b.deleteVM(ctx, bench.VMName(n)) })
	})
}

// withController runs a controller during an operation.
func (b *benchmark) withController(ctx context.Context, do func(context.Context) error) error {
	c, err := b.startController(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, operationTimeout+time.Duration(b.Machines)*time.Second, errors.New("the machines were not ready in time"))
	defer cancel()
	return stopController(c, do(ctx))
}

func (b *benchmark) createAll(ctx context.Context) error {
	return bench.ForEach(ctx, b.Machines, parallelMachines, func(ctx context.Context, n int) error {
		from, name := b.log.Len(), bench.VMName(n)
		if _, err := b.createVM(ctx, name, api.ActionActive); err != nil {
			return err
		}
		_, err := b.waitForPhase(ctx, from, name, api.PhaseActive)
		return err
	})
}

// measureStarts returns the memory of several controllers, in bytes: heap and stacks.
func (b *benchmark) measureStarts(ctx context.Context) ([]float64, error) {
	var all []float64
	for range b.Starts {
		c, err := b.startController(ctx)
		if err != nil {
			return nil, err
		}
		memory, err := b.measureStart(ctx, c)
		if err := stopController(c, err); err != nil {
			return nil, err
		}
		all = append(all, float64(memory.Anonymous))
	}
	return all, nil
}

func (b *benchmark) measureStart(ctx context.Context, c *bench.Controller) (bench.Memory, error) {
	if err := bench.Pause(ctx, settleDelay); err != nil {
		return bench.Memory{}, err
	}
	if err := b.waitUntilQuiet(ctx, c); err != nil {
		return bench.Memory{}, err
	}
	return bench.MemoryOf(c.PID())
}
