// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// identity is the engine's own id, and the id of its network "none". Every data root
// of Docker has one such network, with a random id for life. So that id proves which
// engine answers, without the cost of /info, for which the engine runs other programs.
type identity struct{ network, engine string }

// EngineID implements driver.Identifier. It queries the engine each time, because
// another one may answer at the same address.
func (d *Driver) EngineID(ctx context.Context) (string, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	network, err := d.networkID(ctx)
	if err != nil {
		return "", err
	}
	if known := d.identity.Load(); known != nil && known.network == network {
		return known.engine, nil
	}
	return d.identify(ctx, network)
}

// identify caches the id only if the same engine answered before and after. An
// engine without that network, such as Podman, is queried for its id each time.
func (d *Driver) identify(ctx context.Context, network string) (string, error) {
	info, err := d.info(ctx)
	if err != nil {
		return "", err
	}
	if info.ID == "" {
		return "", driver.Errorf(driver.ErrUnavailable, "the engine at %s has no id: it may be no Docker Engine", d.host)
	}
	if network == "" {
		return info.ID, nil
	}
	after, err := d.networkID(ctx)
	if err == nil && after == network {
		d.identity.Store(&identity{network: network, engine: info.ID})
	}
	return info.ID, err
}

// networkID is empty if the engine has no network "none", or does not report it.
func (d *Driver) networkID(ctx context.Context) (id string, err error) {
	err = d.read(ctx, "look at its network none", func(ctx context.Context, c *client.Client) error {
		res, err := c.NetworkInspect(ctx, "none", client.NetworkInspectOptions{})
		id = res.Network.ID
		return err
	})
	if err != nil && ctx.Err() == nil && !errors.Is(err, driver.ErrUnavailable) {
		return "", nil
	}
	return id, err
}
