// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// identity has the engine's id, and the id of its network "none". Every data root of Docker
// has one such network, with a random id that never changes. The network's id tells which
// engine answers, and costs less than /info, for which the engine runs other programs.
type identity struct{ networkID, engineID string }

// ID returns the id of the engine that answers now. It queries the engine each time, because
// another engine may answer at the same address.
func (e *Client) ID(ctx context.Context) (string, error) {
	network, err := e.readNetworkID(ctx)
	if err != nil {
		return "", err
	}
	if known := e.identity.Load(); known != nil && known.networkID == network {
		return known.engineID, nil
	}
	return e.readID(ctx, network)
}

// readID reads the engine's id. It caches the id only if the network's id is the same before and
// after. It does not cache the id of an engine without a network "none", such as Podman.
func (e *Client) readID(ctx context.Context, network string) (string, error) {
	info, err := e.readInfo(ctx)
	if err != nil {
		return "", err
	}
	if info.ID == "" {
		return "", driver.Errorf(driver.ErrUnavailable, "the engine at %s does not report an id: it may not be a Docker Engine", e.address)
	}
	if network == "" {
		return info.ID, nil
	}
	after, err := e.readNetworkID(ctx)
	if err == nil && after == network {
		e.identity.Store(&identity{networkID: network, engineID: info.ID})
	}
	return info.ID, err
}

// readNetworkID returns "" if the engine lacks a network "none", or does not report it.
func (e *Client) readNetworkID(ctx context.Context) (id string, err error) {
	err = e.Read(ctx, "inspect its network none", func(ctx context.Context, c *client.Client) error {
		res, err := c.NetworkInspect(ctx, "none", client.NetworkInspectOptions{})
		id = res.Network.ID
		return err
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrUnavailable) {
		return "", nil
	}
	return id, err
}
