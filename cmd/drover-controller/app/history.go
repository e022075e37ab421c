// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/controller/recorder"
	"cloudnative.tw/drover/internal/leader"
)

// newHistory returns a recorder of decisions.
func newHistory(o *Options, lock *leader.Lock, guard *leader.Guard) (*recorder.Recorder, error) {
	replica, err := leader.Identity(o.HolderIdentity)
	if err != nil {
		return nil, err
	}
	if lock != nil {
		replica = lock.Identity() // as the Lease has it
	}
	return recorder.New(recorder.Options{
		Replica: replica, Version: Version, Epoch: epochOf(guard), Clock: clock.RealClock{}, Write: o.WriteDecision,
	}), nil
}

// epochOf returns a function that returns the epoch while this process leads for certain, else 0.
func epochOf(guard *leader.Guard) func() uint64 {
	return func() uint64 {
		if guard.Check() != nil {
			return 0
		}
		return guard.Epoch()
	}
}
