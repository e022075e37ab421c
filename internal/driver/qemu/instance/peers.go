// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"os"
	"time"

	"cloudnative.tw/drover/internal/machine/broker"
	"cloudnative.tw/drover/internal/machine/control"
)

// connectEvery is the interval between two tries to connect a machine to the broker.
const connectEvery = time.Second

// connectPeers keeps a machine connected to other machines, through the broker, until ctx ends or the server is released.
func (f *follower) connectPeers(ctx context.Context, c *control.Client) {
	for last := ""; ctx.Err() == nil; f.waitFor(ctx, connectEvery) {
		now, err := f.inst.Load()
		if err != nil || now.Retained || !now.Address.IsValid() {
			return
		}
		peer := broker.Machine{UID: string(now.UID), Cluster: now.ClusterID, Namespace: now.Namespace, Name: now.Name, Address: now.Address.Addr()}
		err = f.inst.Host.Broker.Connect(ctx, peer, func(ctx context.Context, calls, accepts *os.File) error { return f.joinLink(ctx, c, calls, accepts) })
		if err != nil && ctx.Err() == nil && err.Error() != last {
			last = err.Error()
			f.inst.Host.Log.V(1).Info("Machine is not connected to other machines", "uid", f.inst.UID, "cause", last)
		}
	}
}

// errReleased means that the machine does not belong to a server any more.
var errReleased = errors.New("the machine was released")

// joinLink passes a link to the broker on to the supervisor. It first checks again that the server is not released: a
// release ends the link of a member of the broker, but the machine has become a member only now.
func (f *follower) joinLink(ctx context.Context, c *control.Client, calls, accepts *os.File) error {
	if now, err := f.inst.Load(); err != nil || now.Retained {
		return errors.Join(errReleased, err)
	}
	return c.Join(ctx, calls, accepts)
}
