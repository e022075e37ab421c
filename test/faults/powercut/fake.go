// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
)

// newFakeWorkload returns a workload that creates, runs, releases and deletes simulated
// servers, which need not survive a power cut.
func newFakeWorkload(in inputs) (*workload, error) {
	d, err := fake.New(fake.Options{ClusterID: clusterID, Dir: in.Dir})
	if err != nil {
		return nil, err
	}
	w := &workload{driver: d, specs: map[types.UID]driver.ServerSpec{}, isVolatile: true}
	for uid, name := range map[types.UID]string{uidKept: "kept", uidLast: "last"} {
		w.specs[uid] = driver.ServerSpec{
			Target: driver.Target{UID: uid, Epoch: 1}, Namespace: "default", Name: name,
			RestartPolicy: driver.RestartNever, CPUMilli: 1000, MemoryBytes: 16 << 20,
		}
	}
	w.steps = []step{
		w.reach("create kept", uidKept, driver.PowerOff, driver.StateStopped, nil),
		w.reach("create last", uidLast, driver.PowerOn, driver.StateRunning, nil),
		w.reach("stop last", uidLast, driver.PowerOff, driver.StateStopped, nil),
		w.remove("retain kept", uidKept, true),
		w.remove("delete last", uidLast, false),
	}
	return w, nil
}
