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
	// machinesAtOnce are made at a time.
	machinesAtOnce = 4
	// settled is how long after its start a controller has looked at all machines.
	settled = 3 * time.Second
)

// memory measures what machines add to a controller that finds them at its start.
func (b *benchmark) memory(ctx context.Context) error {
	without, err := b.weighAll(ctx)
	if err != nil {
		return err
	}
	tell("Making %d machines", b.Machines)
	if err := b.with(ctx, func(ctx context.Context) error { return b.makeAll(ctx) }); err != nil {
		return err
	}
	with, err := b.weighAll(ctx)
	if err != nil {
		return err
	}
	b.report.weigh(without, with)
	return b.with(ctx, func(ctx context.Context) error {
		return bench.Each(ctx, b.Machines, machinesAtOnce, func(ctx context.Context, n int) error { return b.delete(ctx, bench.NameOf(n)) })
	})
}

// with runs a controller during an operation.
func (b *benchmark) with(ctx context.Context, do func(context.Context) error) error {
	c, err := b.start(ctx)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, within+time.Duration(b.Machines)*time.Second, errors.New("the machines were not done in time"))
	defer cancel()
	return stop(c, do(ctx))
}

func (b *benchmark) makeAll(ctx context.Context) error {
	return bench.Each(ctx, b.Machines, machinesAtOnce, func(ctx context.Context, n int) error {
		from, name := b.log.Len(), bench.NameOf(n)
		if _, err := b.newVM(ctx, name, api.ActionActive); err != nil {
			return err
		}
		_, err := b.await(ctx, from, name, api.PhaseActive)
		return err
	})
}

// weighAll returns the memory of several controllers, in bytes: heap and stacks.
func (b *benchmark) weighAll(ctx context.Context) ([]float64, error) {
	var all []float64
	for range b.Starts {
		c, err := b.start(ctx)
		if err != nil {
			return nil, err
		}
		memory, err := b.weigh(ctx, c)
		if err := stop(c, err); err != nil {
			return nil, err
		}
		all = append(all, float64(memory.Anonymous))
	}
	return all, nil
}

func (b *benchmark) weigh(ctx context.Context, c *bench.Controller) (bench.Memory, error) {
	if err := bench.Pause(ctx, settled); err != nil {
		return bench.Memory{}, err
	}
	if err := b.quiet(ctx, c); err != nil {
		return bench.Memory{}, err
	}
	return bench.MemoryOf(c.PID())
}
