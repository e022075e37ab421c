// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"cloudnative.tw/drover/internal/guest/config"
	"cloudnative.tw/drover/internal/guest/wire"
)

// Limits of what a guest says of itself.
const (
	maxInterfaces = 256
	maxName       = 64
)

// Interfaces returns the guest's network interfaces, without the loopback one.
func (c *Client) Interfaces(ctx context.Context) ([]wire.Interface, error) {
	r, err := c.ask(ctx, wire.Request{Op: wire.OpInterfaces})
	if err != nil {
		return nil, err
	}
	if len(r.Interfaces) > maxInterfaces || slices.ContainsFunc(r.Interfaces, isImpossible) {
		return nil, fmt.Errorf("%w: it has network interfaces that cannot be", ErrBadAnswer)
	}
	return r.Interfaces, nil
}

// isImpossible reports whether no interface can have these values. They may be shown on a terminal.
func isImpossible(i wire.Interface) bool {
	if i.Name == "" || i.Name != config.Printable(i.Name, maxName) || len(i.Addresses) > maxInterfaces {
		return true
	}
	if mac, err := net.ParseMAC(i.MAC); i.MAC != "" && (err != nil || mac.String() != i.MAC) {
		return true
	}
	return slices.ContainsFunc(i.Addresses, func(p netip.Prefix) bool { return !p.IsValid() || p.Addr().Zone() != "" })
}

// Usage returns what the guest uses, as its kernel counts it.
func (c *Client) Usage(ctx context.Context) (wire.Usage, error) {
	r, err := c.ask(ctx, wire.Request{Op: wire.OpUsage})
	if err != nil {
		return wire.Usage{}, err
	}
	u := r.Usage
	if u == nil || u.CPUs < 0 || u.CPUNanoseconds < 0 || u.AvailableBytes < 0 || u.AvailableBytes > u.MemoryBytes || u.FreeBytes < 0 || u.FreeBytes > u.DiskBytes {
		return wire.Usage{}, fmt.Errorf("%w: its usage cannot be", ErrBadAnswer)
	}
	return *u, nil
}

// SetTime sets the guest's clock.
func (c *Client) SetTime(ctx context.Context, now time.Time) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpSetTime, Nanoseconds: now.UnixNano()})
	return err
}

// Reseed mixes a seed into the guest's random numbers, which another machine of the same snapshot
// would have, too.
func (c *Client) Reseed(ctx context.Context, seed []byte) error {
	if len(seed) == 0 || len(seed) > wire.MaxSeed {
		return fmt.Errorf("seed has %d bytes, want 1 to %d", len(seed), wire.MaxSeed)
	}
	_, err := c.ask(ctx, wire.Request{Op: wire.OpReseed, Seed: seed})
	return err
}

// Freeze flushes the disk and blocks further writes until Thaw, for at most limit, and no longer than
// this session lasts. A second call restarts the limit.
func (c *Client) Freeze(ctx context.Context, limit time.Duration) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpFreeze, Nanoseconds: limit.Nanoseconds()})
	return err
}

// Thaw ends a Freeze.
func (c *Client) Thaw(ctx context.Context) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpThaw})
	return err
}
