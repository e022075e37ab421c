// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guestwrites explores what a power cut leaves of the disks that a guest writes to.
//
// The Linux guest for tests writes blocks that show what it has synced (package blocks).
// Program attach takes QEMU's place and has it use the disks by an NBD server of this package
// (nbd.go), which records writes and flushes in order (record.go). A power cut leaves what was
// durable, and of all other writes any sectors. States that it may leave are checked by
// qemu-img and by the guest's blocks (check.go). One of them takes the place of the disks, and
// Drover and the guest go on with it (run.go).
//
// QEMU's own filter blklogwrites records writes too, but not what was in progress, nor the order
// of what was written to two disks.
package guestwrites

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// Name is that of the kind of fault.
const Name = "guest writes"

// bounds say how much is explored.
type bounds struct {
	// machines is how many machines there are, one after the other, and scenarios in how many
	// scenarios the power of each is cut. states is how many states are looked at each time.
	machines, scenarios, states int
}

var sizes = map[lab.Size]bounds{
	lab.SizeShort:   {machines: 1, scenarios: 1, states: 6},
	lab.SizeDefault: {machines: 1, scenarios: len(scenarios), states: 25},
	lab.SizeFull:    {machines: 20, scenarios: len(scenarios), states: 60},
}

// Kind returns the kind of fault.
func Kind() lab.Kind {
	return lab.Kind{
		Name: Name, Sizes: []lab.Size{lab.SizeDefault, lab.SizeFull},
		Explore: func(ctx context.Context, l *lab.Lab, size lab.Size) (lab.Result, error) {
			return explore(ctx, l, sizes[size])
		},
		Replay: func(ctx context.Context, _ *lab.Lab, folder string) (lab.Result, error) { return replay(ctx, folder) },
	}
}

// explore runs machines one after the other until a rule is broken.
func explore(ctx context.Context, l *lab.Lab, b bounds) (result lab.Result, err error) {
	defer func(begin time.Time) { result.Took = time.Since(begin) }(time.Now())
	cuts, qemu := 0, lab.NewQEMU()
	for number := range b.machines {
		done, err := exploreMachine(ctx, l, qemu, b, number, &result)
		if cuts += done; err != nil || len(result.Violations) > 0 {
			return result, err
		}
	}
	result.Notes = []string{fmt.Sprintf("Drover and guests went on after %d power cuts", cuts)}
	return result, nil
}

// exploreMachine runs a machine in a world of its own, and returns after how many power cuts
// Drover and its guest went on.
func exploreMachine(ctx context.Context, l *lab.Lab, qemu lab.QEMU, b bounds, number int, result *lab.Result) (cuts int, err error) {
	random := rand.New(rand.NewPCG(uint64(number), 0)) //nolint:gosec // no secret
	r, err := startRun(ctx, l, qemu, random, b.states, result)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	cuts, err = r.playAll(ctx, number, b.scenarios)
	if v := lab.ViolationOf(err); v != nil {
		r.addViolation(lab.Violation{Rule: v.Rule, Text: err.Error()})
		err = nil
	}
	return cuts, err
}

// playAll cuts the power in so many scenarios, from a number on, and judges the world then.
func (r *run) playAll(ctx context.Context, from, count int) (cuts int, err error) {
	if err := r.waitRounds(ctx); err != nil {
		return 0, err
	}
	for n := range count {
		if err := r.play(ctx, scenarios[(from+n)%len(scenarios)]); err != nil || len(r.result.Violations) > 0 {
			return n, err
		}
	}
	_, broken, err := r.world.Judge(ctx, r.replicas)
	for _, v := range broken {
		r.addViolation(v)
	}
	return count, err
}
