// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// maxSteps is more than any server needs. It ends a conflict with another program
// that undoes each step.
const maxSteps = 8

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := checkCall(spec); err != nil {
		return driver.Server{}, err
	}
	ctx, cancel := d.bound(ctx)
	defer cancel()
	release, err := d.locks.acquire(ctx, spec.UID)
	if err != nil {
		return driver.Server{}, err
	}
	defer release()

	r, err := d.find(ctx, spec.Target)
	creates := errors.Is(err, driver.ErrNotFound) && spec.ID == ""
	if err != nil && !creates {
		return driver.Server{}, err
	}
	// Off needs nothing of the spec, so a spec that cannot be honoured must not keep a server on.
	if creates || spec.Power != driver.PowerOff {
		if err := d.check(spec); err != nil {
			return driver.Server{}, err
		}
	}
	if creates {
		return d.create(ctx, spec)
	}
	return d.converge(ctx, spec, r)
}

// converge changes a container to match the spec, or as far as possible without waiting.
func (d *Driver) converge(ctx context.Context, spec driver.ServerSpec, r record) (driver.Server, error) {
	d.notes.remember(r.id, spec.RootDiskBytes)
	for range maxSteps {
		done, err := d.advance(ctx, spec, &r)
		if err != nil {
			return driver.Server{}, err
		}
		if done {
			s := d.server(r)
			s.Pending = pendingFields(r, spec)
			return s, nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "container %s does not settle: it is %s again and again", shortID(r.id), r.state)
}

// advance takes one step and inspects the container again. A stop comes first, so
// that a size which the host cannot provide does not keep the container on.
func (d *Driver) advance(ctx context.Context, spec driver.ServerSpec, r *record) (done bool, err error) {
	_, stopping := d.stops.of(*r)
	pending := pendingFields(*r, spec)
	next := nextStep(*r, spec, stopping, pending)
	if next == stepStop {
		if len(pending) > 0 && spec.Power != driver.PowerOff && !stopping {
			if waits, err := d.fetching(ctx, spec); waits || err != nil {
				return true, err
			}
		}
		return d.stop(ctx, spec, r)
	}
	if next == stepReplace {
		return d.replace(ctx, spec, r)
	}
	if err := d.resize(ctx, spec, r); err != nil {
		return false, err
	}
	if next == stepNone {
		if len(pending) == 0 {
			d.fetches.ReleaseExcept(spec.UID) // in case of a change that was reverted
		}
		return true, nil
	}
	return false, d.power(ctx, spec, next, r)
}

// find returns the one container of a UID.
func (d *Driver) find(ctx context.Context, t driver.Target) (record, error) {
	s, err := d.lookUp(ctx, t)
	if err != nil {
		return record{}, err
	}
	r, err := d.inspect(ctx, s.ID)
	if isGone(err) {
		return record{}, driver.Errorf(driver.ErrNotFound, "container %s is gone", shortID(s.ID))
	}
	return r, err
}

// lookUp is find by the engine's list alone, which answers even for a container
// that is stuck.
func (d *Driver) lookUp(ctx context.Context, t driver.Target) (container.Summary, error) {
	own, err := d.summaries(ctx, true, t.UID)
	switch {
	case err != nil:
		return container.Summary{}, err
	case len(own) > 1:
		return container.Summary{}, driver.WithReason(driver.ReasonDuplicate, driver.Errorf(driver.ErrRetry,
			"containers %s and %s both carry the UID %s: remove the wrong one, neither is touched", own[0].ID, own[1].ID, t.UID))
	case len(own) == 0:
		return container.Summary{}, driver.Errorf(driver.ErrNotFound, "there is no container of UID %s", t.UID)
	case t.ID != "" && t.ID != own[0].ID:
		return container.Summary{}, driver.Errorf(driver.ErrNotFound, "the container of UID %s is %s, not %s", t.UID, shortID(own[0].ID), shortID(t.ID))
	}
	return own[0], nil
}

// inspect inspects one container. If there is none, isGone is true of the error.
func (d *Driver) inspect(ctx context.Context, id string) (r record, err error) {
	err = d.read(ctx, "inspect container "+shortID(id), func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err == nil {
			r = newRecord(res.Container)
		}
		return err
	})
	return r, err
}

// refresh inspects r again.
func (d *Driver) refresh(ctx context.Context, r *record) error {
	now, err := d.inspect(ctx, r.id)
	if isGone(err) {
		return vanished(r.id)
	}
	if err == nil {
		*r = now
	}
	return err
}
