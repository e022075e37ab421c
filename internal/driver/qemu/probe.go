// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

var _ driver.Prober = (*Driver)(nil)

// Probe implements driver.Prober, by way of the host port that leads to the guest's.
func (d *Driver) Probe(ctx context.Context, uid types.UID, port int32) error {
	h, f, err := d.forwardTo(uid, port)
	if err != nil {
		return err
	}
	return h.Probe(ctx, d.Clock, f)
}

// forwardTo returns the forward that leads to a TCP port of a guest.
func (d *Driver) forwardTo(uid types.UID, port int32) (*instance, machine.Forward, error) {
	if err := checkUID(uid); err != nil {
		return nil, machine.Forward{}, err
	}
	h := d.instanceOf(uid)
	r, err := h.load()
	if err != nil {
		return h, machine.Forward{}, err
	}
	n := slices.IndexFunc(r.Forwards, func(f machine.Forward) bool { return f.Protocol == "tcp" && f.Port == port })
	if n < 0 {
		return h, machine.Forward{}, fmt.Errorf("tcpSocket.port is %d: it must be the port of one of spec.ports with protocol TCP, since nothing else leads to the guest", port)
	}
	return h, r.Forwards[n], nil
}
