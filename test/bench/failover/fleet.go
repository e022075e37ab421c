// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"errors"
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"cloudnative.tw/drover/test/bench"
)

// steadyTimeout bounds the wait until replicas run, are ready and have a
// leader.
const steadyTimeout = 2 * time.Minute

type leaseEvent = bench.Event[*coordinationv1.Lease]

// fleet has the replicas of one program, and the Lease that they share.
type fleet struct {
	name     string
	log      *bench.Log[*coordinationv1.Lease]
	launch   func(identity string) (*bench.Controller, error)
	replicas []*replica
	started  int
	lost     int // replicas that ended by themselves
}

// replica is a process that takes part in an election.
type replica struct {
	*bench.Controller
	identity string
	// stopRequested is set before the benchmark ends the replica.
	stopRequested bool
}

// startMissing starts replicas in place of those that have ended.
func (f *fleet) startMissing() error {
	alive := f.replicas[:0]
	for _, r := range f.replicas {
		if !r.HasEnded() {
			alive = append(alive, r)
		} else if !r.stopRequested {
			f.lost++
			bench.Logf("%s ended unexpectedly: %s", r.identity, lastLine(r.Output()))
		}
	}
	for f.replicas = alive; len(f.replicas) < replicas; {
		f.started++
		identity := fmt.Sprintf("%s-%d", f.name, f.started)
		c, err := f.launch(identity)
		if err != nil {
			return fmt.Errorf("start %s: %w", identity, err)
		}
		f.replicas = append(f.replicas, &replica{Controller: c, identity: identity})
	}
	return nil
}

func lastLine(output string) string {
	lines := strings.Split(strings.TrimSpace(output), "\n")
	return lines[len(lines)-1]
}

// waitForLeader waits until the Lease names one of the replicas, and returns it.
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

// holderOf returns the identity of the Lease's holder, without the suffix that Drover adds.
func holderOf(e leaseEvent) string {
	if e.Object == nil || e.Object.Spec.HolderIdentity == nil {
		return ""
	}
	name, _, _ := strings.Cut(*e.Object.Spec.HolderIdentity, "_")
	return name
}

// stopAll ends all replicas.
func (f *fleet) stopAll() (err error) {
	for _, r := range f.replicas {
		if !r.HasEnded() {
			err = errors.Join(err, r.StopWith(nil))
		}
	}
	f.replicas = nil
	return err
}
