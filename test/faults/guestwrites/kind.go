// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guestwrites explores the effects of power cuts on disks that a guest writes to.
//
// The Linux guest for tests writes blocks that tell what it has synced (package blocks).
// Program attach makes QEMU use the disks through an NBD server of this package (nbd.go), which
// records writes and flushes in order (record.go). After a power cut durable writes are on the
// disk, and any sectors of other writes. The possible states are checked by qemu-img and by the
// guest's blocks (check.go). In the end one of them replaces the disks, and Drover and the guest
// continue with it (run.go).
//
// The filter blklogwrites of QEMU records writes too, but neither those in progress nor the order
// of writes to two disks.
package guestwrites

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"cloudnative.tw/drover/test/faults/lab"
)

// states is how many possible states after a power cut are checked.
const states = 25

// Kind returns the kind of fault, which has one case.
func Kind() lab.Kind {
	return lab.Kind{
		Name: "guest writes", Sizes: []lab.Size{lab.SizeDefault, lab.SizeFull},
		Explore: func(ctx context.Context, l *lab.Lab, _ lab.Size) (lab.Result, error) { return explore(ctx, l) },
		Replay:  func(ctx context.Context, l *lab.Lab, _ string) (lab.Result, error) { return explore(ctx, l) },
	}
}

// explore cuts the power of a machine while its disks grow, lets it continue and judges the world.
func explore(ctx context.Context, l *lab.Lab) (result lab.Result, err error) {
	defer func(begin time.Time) { result.Took = time.Since(begin) }(time.Now())
	r, err := startRun(ctx, l, rand.New(rand.NewPCG(0, 0)), &result) //nolint:gosec // no secret
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, r.close(ctx)) }()
	err = r.play(ctx)
	if v := lab.ViolationOf(err); v != nil {
		r.addViolation(lab.Violation{Rule: v.Rule, Text: err.Error()})
		err = nil
	}
	if err != nil || len(result.Violations) > 0 {
		return result, err
	}
	_, broken, err := r.world.Judge(ctx, r.replicas)
	for _, v := range broken {
		r.addViolation(v)
	}
	return result, err
}
