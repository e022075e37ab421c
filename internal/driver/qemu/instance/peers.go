// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"time"

	"cloudnative.tw/drover/internal/machine/broker"
	"cloudnative.tw/drover/internal/machine/control"
)

// connectEvery is the interval between two tries to connect a machine to the broker.
const connectEvery = time.Second

// connectPeers lets a machine meet others until ctx ends, as long as it is not released.
func (f *follower) connectPeers(ctx context.Context, c *control.Client) {
	for last := ""; ctx.Err() == nil; f.pause(ctx, connectEvery) {
		now, err := f.inst.Load()
		if err != nil || now.Retained || !now.Address.IsValid() {
			return
		}
		err = f.inst.Host.Broker.Connect(ctx, now.peer(), c.Join)
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			f.inst.Host.Log.V(1).Info("Machine does not meet others", "uid", f.inst.UID, "cause", last)
		}
	}
}

// peer returns what others may know of the machine.
func (inst *Instance) peer() broker.Machine {
	return broker.Machine{UID: string(inst.UID), Cluster: inst.ClusterID, Namespace: inst.Namespace, Name: inst.Name, Address: inst.Address.Addr()}
}
