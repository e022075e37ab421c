// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/download"
)

// fetching reports whether a server has to wait for its image, and starts a pull
// if needed. A failed pull is reported once; the call after that starts a new one.
// A pull only pulls: the next Ensure does the rest.
func (d *Driver) fetching(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	image, policy := d.image(spec), spec.Image.PullPolicy
	if policy == driver.PullNever {
		d.fetches.ReleaseExcept(spec.UID)
		return false, d.mustBeThere(ctx, image)
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
		if there, err := d.isThere(ctx, image); err != nil || there {
			return false, err
		}
	}
	d.fetches.StartFetch(ctx, spec, key, "pulling "+image, func(ctx context.Context, f *download.Fetch) error {
		err := d.pull(ctx, image, f)
		d.Log.V(1).Info("Pull ended", "image", image, "err", err)
		return err
	})
	return true, nil
}

func (d *Driver) mustBeThere(ctx context.Context, image string) error {
	there, err := d.isThere(ctx, image)
	if err != nil || there {
		return err
	}
	return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry,
		"image %s is not on the Docker host and spec.image.pullPolicy is Never: pull it there or change the policy", image))
}

func (d *Driver) isThere(ctx context.Context, image string) (bool, error) {
	err := d.read(ctx, "look for image "+image, func(ctx context.Context, c *client.Client) error {
		_, err := c.ImageInspect(ctx, image)
		return err
	})
	if isGone(err) {
		return false, nil
	}
	return err == nil, err
}

// pull pulls one image and reports the progress.
func (d *Driver) pull(ctx context.Context, image string, f *download.Fetch) error {
	return d.change(ctx, "pull image "+image, func(ctx context.Context, c *client.Client) error {
		stream, err := c.ImagePull(ctx, image, client.ImagePullOptions{})
		if err != nil {
			return explainPull(err)
		}
		var p progress
		for m, err := range stream.JSONMessages(ctx) {
			switch {
			case err != nil:
				return explainPull(err)
			case m.Error != nil:
				return explainPull(m.Error)
			}
			p.add(m)
			f.Report(p.text(image))
		}
		return ctx.Err()
	})
}

// Abandon implements driver.Fetcher.
func (d *Driver) Abandon(ctx context.Context, uid types.UID) error {
	return d.fetches.Abandon(ctx, uid)
}
