// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"cloudnative.tw/drover/internal/controller/recorder"
	"cloudnative.tw/drover/internal/leader"
)

// addHistory returns what records decisions. What writes them to a file, if one is named, is
// added to the manager.
func addHistory(mgr ctrl.Manager, o *Options, lock *leader.Lock, guard *leader.Guard) (*recorder.Recorder, error) {
	replica, err := leader.Identity(o.HolderIdentity)
	if err != nil {
		return nil, err
	}
	if lock != nil {
		replica = lock.Identity() // as the Lease has it
	}
	settings := recorder.Options{Replica: replica, Version: Version, Epoch: epochOf(guard), Clock: clock.RealClock{}}
	if o.DecisionsFile != "" {
		settings.File = recorder.NewFile(o.DecisionsFile, ctrl.Log.WithName("decisions"), clock.RealClock{})
		err = mgr.Add(settings.File)
	}
	return recorder.New(settings), err
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
