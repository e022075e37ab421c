// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"fmt"
	"slices"
	"time"

	"cloudnative.tw/drover/internal/guest/report"
	"cloudnative.tw/drover/internal/guest/wire"
)

// Limits of answers.
const (
	maxInterfaces = 256
	maxName       = 64
)

// Interfaces returns the guest's network interfaces, without the loopback interface.
func (c *Client) Interfaces(ctx context.Context) ([]report.Interface, error) {
	r, err := c.ask(ctx, wire.Request{Op: wire.OpInterfaces})
	if err != nil {
		return nil, err
	}
	if len(r.Interfaces) > maxInterfaces || slices.ContainsFunc(r.Interfaces, isImpossible) {
		return nil, fmt.Errorf("%w: it has invalid or too many network interfaces", ErrBadAnswer)
	}
	return r.Interfaces, nil
}

// Mounted returns the revisions of the folders whose files the host replaces, by their paths.
func (c *Client) Mounted(ctx context.Context) (map[string]string, error) {
	r, err := c.ask(ctx, wire.Request{Op: wire.OpMounted})
	return r.Mounted, err
}

// isImpossible reports whether no interface can have these values, or they are not safe to print on a terminal.
func isImpossible(i report.Interface) bool {
	return !i.IsValid() || len(i.Name) > maxName || len(i.Addresses) > maxInterfaces
}

// SetTime sets the guest's clock.
func (c *Client) SetTime(ctx context.Context, now time.Time) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpSetTime, Nanoseconds: now.UnixNano()})
	return err
}

// HoldOutput holds back the output of the entrypoint until ctx or the session ends.
func (c *Client) HoldOutput(ctx context.Context) error {
	_, err := c.ask(ctx, wire.Request{Op: wire.OpHold})
	return err
}

// Reseed mixes a seed into the guest's random number generator. Otherwise machines of the same
// snapshot would have the same random numbers.
func (c *Client) Reseed(ctx context.Context, seed []byte) error {
	if len(seed) == 0 || len(seed) > wire.MaxSeed {
		return fmt.Errorf("seed has %d bytes, want 1 to %d", len(seed), wire.MaxSeed)
	}
	_, err := c.ask(ctx, wire.Request{Op: wire.OpReseed, Seed: seed})
	return err
}
