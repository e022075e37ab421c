// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/pull"
	"cloudnative.tw/drover/internal/driver/download"
)

// ensureImage reports whether a server has to wait for its image, and starts a pull
// if needed. A failed pull is reported once; the call after that starts a new one.
// A pull only pulls: the next Ensure does the rest.
func (d *Driver) ensureImage(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	image, policy := d.Options.imageReference(spec), spec.Image.PullPolicy
	if policy == driver.PullNever {
		d.fetches.ReleaseExcept(spec.UID)
		present, err := d.engine.HasImage(ctx, image)
		if err == nil && !present {
			err = driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry,
				"image %s is not on the Docker host and spec.image.pullPolicy is Never: pull it there or change the policy", image))
		}
		return false, err
	}
	key := fullReference(image)
	d.fetches.ReleaseExcept(spec.UID, key)
	outcome, err := d.fetches.Outcome(spec.UID, key)
	switch {
	case err != nil:
		return false, err
	case outcome == download.Running:
		return true, nil
	case outcome == download.Fetched && policy == driver.PullAlways:
		return false, nil
	}
	if policy != driver.PullAlways {
		if present, err := d.engine.HasImage(ctx, image); err != nil || present {
			return false, err
		}
	}
	d.fetches.StartFetch(ctx, spec, key, "pulling "+image, func(ctx context.Context, f *download.Fetch) error {
		err := d.engine.Change(ctx, "pull image "+image, func(ctx context.Context, c *client.Client) error {
			return pull.Image(ctx, c, image, f)
		})
		d.Options.Log.V(1).Info("Pull ended", "image", image, "err", err)
		return err
	})
	return true, nil
}

// Abandon implements driver.Fetcher.
func (d *Driver) Abandon(ctx context.Context, uid types.UID) error {
	return d.fetches.Abandon(ctx, uid)
}
