// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"cloudnative.tw/drover/internal/driver"
)

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	ctx, end, err := d.calls.BeginChange(ctx, spec.UID)
	if err != nil {
		return driver.Server{}, err
	}
	defer end()
	i, err := d.findInstance(ctx, spec.Target)
	creates := errors.Is(err, driver.ErrNotFound) && spec.ID == ""
	if err != nil && !creates {
		return driver.Server{}, err
	}
	// Off needs nothing of the spec, so a spec that cannot be honoured must not keep a server on.
	if creates || spec.Power != driver.PowerOff {
		if err := d.Options.checkSpec(spec); err != nil {
			return driver.Server{}, err
		}
	}
	if creates {
		if i, err = d.createServer(ctx, spec); err != nil {
			return driver.Server{}, err
		}
	}
	if i == nil {
		return d.fetches.PendingServer(spec.UID), nil
	}
	return i.convergeTo(ctx, spec)
}
