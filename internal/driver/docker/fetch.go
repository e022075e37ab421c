// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
)

// tellProgress is how often a pull's progress is worth another look.
const tellProgress = 2 * time.Second

// fetches are the pulls under way, one for each image, and the servers that
// wait for one. A pull only pulls: what follows is up to the next Ensure.
type fetches struct {
	mu      sync.Mutex
	byImage map[string]*fetch
	claims  map[types.UID]*claim
}

// claim is a server's interest in an image. It outlives the fetch, so that the
// next Ensure learns how that ended and List goes on showing a failure.
type claim struct {
	namespace, name string
	image           string
	fetch           *fetch // nil when it is over
	err             error
	told            bool
}

type fetch struct {
	image    string
	cancel   context.CancelFunc
	done     chan struct{}
	progress progress
	told     time.Time
}

// fetching tells whether a server has to wait for its image, and starts to
// fetch it where needed. A failed pull is told once; the call after that starts
// a new one.
func (d *Driver) fetching(ctx context.Context, spec driver.ServerSpec) (waits bool, err error) {
	image, policy := d.image(spec), spec.Image.PullPolicy
	if policy == driver.PullNever {
		d.fetches.used(spec.UID)
		return false, d.mustBeThere(ctx, image)
	}
	over, err := d.fetches.outcome(spec.UID, image)
	switch {
	case err != nil:
		return false, err
	case over && policy == driver.PullAlways:
		return false, nil
	case d.fetches.doing(spec.UID) != "":
		return true, nil
	}
	if policy != driver.PullAlways {
		if there, err := d.isThere(ctx, image); err != nil || there {
			return false, err
		}
	}
	d.startFetch(ctx, spec, image)
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

// startFetch joins the server to the pull of its image. The pull goes on after
// the call that began it.
func (d *Driver) startFetch(ctx context.Context, spec driver.ServerSpec, image string) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	f, isNew := d.fetches.start(spec, image, cancel)
	if !isNew {
		cancel()
		return
	}
	go func() {
		defer close(f.done)
		defer cancel()
		err := d.pull(ctx, f)
		d.Log.V(1).Info("Pull ended", "image", f.image, "err", err)
		d.watches.tell(d.fetches.end(f, err)...)
	}()
}

var errStalled = errors.New("the pull stalled")

// pull pulls one image and reports how that goes.
func (d *Driver) pull(ctx context.Context, f *fetch) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	alive := make(chan struct{}, 1)
	go d.cancelStalled(ctx, cancel, alive)
	err := d.change(ctx, "pull image "+f.image, func(ctx context.Context, c *client.Client) error {
		stream, err := c.ImagePull(ctx, f.image, client.ImagePullOptions{})
		if err != nil {
			return err
		}
		for m, err := range stream.JSONMessages(ctx) {
			switch {
			case err != nil:
				return err
			case m.Error != nil:
				return m.Error
			}
			select {
			case alive <- struct{}{}:
			default:
			}
			d.watches.tell(d.fetches.progressed(f, m, d.Clock.Now())...)
		}
		return ctx.Err()
	})
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return driver.Errorf(driver.ErrRetry, "pull image %s: no progress for %v: %w", f.image, d.PullStall, errStalled)
	}
	return err
}

// cancelStalled ends a pull that has been silent for too long.
func (d *Driver) cancelStalled(ctx context.Context, cancel context.CancelCauseFunc, alive <-chan struct{}) {
	timer := d.Clock.NewTimer(d.PullStall)
	defer timer.Stop()
	for {
		select {
		case <-alive:
			timer.Reset(d.PullStall)
		case <-timer.C():
			cancel(errStalled)
			return
		case <-ctx.Done():
			return
		}
	}
}
