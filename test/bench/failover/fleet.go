// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// steadyTimeout is how long it may take until replicas run, are ready and have a
// leader.
const steadyTimeout = 2 * time.Minute

type leaseEvent = bench.Event[*coordinationv1.Lease]

// fleet is the replicas of one kind, and the Lease that they share.
type fleet struct {
	name     string
	log      *bench.Log[*coordinationv1.Lease]
	launch   func(ctx context.Context, identity string) (*replica, error)
	replicas []*replica
	want     int
	started  int
	lost     int // ended without being stopped
}

// replica is a process that takes part in an election.
type replica struct {
	*framework.Process
	identity string
	ready    func() error
	// stopRequested is set when its end is requested.
	stopRequested bool
}

// startReplicas starts replicas until there are as many as wanted.
func (f *fleet) startReplicas(ctx context.Context) error {
	alive := f.replicas[:0]
	for _, r := range f.replicas {
		if !r.HasEnded() {
			alive = append(alive, r)
		} else if !r.stopRequested {
			f.lost++
			bench.Logf("%s ended unexpectedly: %s", r.identity, lastLine(r.Output()))
		}
	}
	for f.replicas = alive; len(f.replicas) < f.want; {
		f.started++
		r, err := f.launch(ctx, fmt.Sprintf("%s-%d", f.name, f.started))
		if err != nil {
			return fmt.Errorf("start a replica of %s: %w", f.name, err)
		}
		f.replicas = append(f.replicas, r)
	}
	return nil
}

// waitUntilReady waits until there are as many replicas as wanted, and all of them
// take part in the election.
func (f *fleet) waitUntilReady(ctx context.Context) error {
	_, err := bench.Poll(steadyTimeout, func() error {
		if err := f.startReplicas(ctx); err != nil {
			return err
		}
		for _, r := range f.replicas {
			if err := r.ready(); err != nil {
				return fmt.Errorf("%s is not ready: %w; it printed:\n%s", r.identity, err, r.Output())
			}
		}
		return ctx.Err()
	})
	return err
}

func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return lines[len(lines)-1]
}

// waitForLeader returns the replica that the Lease names.
func (f *fleet) waitForLeader() (leader *replica, err error) {
	_, err = bench.Poll(steadyTimeout, func() error {
		last, _ := f.log.Last()
		for _, r := range f.replicas {
			if holderOf(last) == r.identity {
				leader = r
				return nil
			}
		}
		return fmt.Errorf("the Lease names %q, none of the replicas of %s", holderOf(last), f.name)
	})
	return leader, err
}

// holderOf returns the name that a replica was given; Drover adds a suffix to it.
func holderOf(e leaseEvent) string {
	if e.Object == nil || e.Object.Spec.HolderIdentity == nil {
		return ""
	}
	name, _, _ := strings.Cut(*e.Object.Spec.HolderIdentity, "_")
	return name
}

// stopProcess ends it, and returns its errors.
func (r *replica) stopProcess() error {
	if err := r.Stop(); err != nil {
		return fmt.Errorf("%s did not stop cleanly: %w; it printed:\n%s", r.identity, err, r.Output())
	}
	return nil
}

// stopAll ends all replicas.
func (f *fleet) stopAll() (err error) {
	for _, r := range f.replicas {
		if !r.HasEnded() {
			err = errors.Join(err, r.stopProcess())
		}
	}
	f.replicas = nil
	return err
}
