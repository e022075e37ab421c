// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// maxSteps is more than any server needs. It ends a conflict with another program
// that undoes each step.
const maxSteps = 8

// Ensure implements driver.Driver.
func (d *Driver) Ensure(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := checkArguments(spec); err != nil {
		return driver.Server{}, err
	}
	ctx, cancel := d.withCallTimeout(ctx)
	defer cancel()
	unlock, err := d.lockServer(ctx, spec.UID)
	if err != nil {
		return driver.Server{}, err
	}
	defer unlock()

	i, err := d.findInstance(ctx, spec.Target)
	creates := errors.Is(err, driver.ErrNotFound) && spec.ID == ""
	if err != nil && !creates {
		return driver.Server{}, err
	}
	// Off needs nothing of the spec, so a spec that cannot be honoured must not keep a server on.
	if creates || spec.Power != driver.PowerOff {
		if err := d.checkSpec(spec); err != nil {
			return driver.Server{}, err
		}
	}
	if creates {
		return d.createServer(ctx, spec)
	}
	return i.convergeTo(ctx, spec)
}

// convergeTo changes a container to match the spec, or as far as possible without waiting.
func (i *instance) convergeTo(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	i.driver.rootDisks.Store(i.id, spec.RootDiskBytes)
	for range maxSteps {
		done, err := i.takeNextStep(ctx, spec)
		if err != nil {
			return driver.Server{}, err
		}
		if done {
			s := i.toServer()
			s.Pending = pendingFields(i, spec)
			return s, nil
		}
	}
	return driver.Server{}, driver.Errorf(driver.ErrRetry, "container %s does not settle: it is %s again and again", engine.ShortID(i.id), i.state)
}

// takeNextStep takes one step and inspects the container again. A stop comes first, so
// that a size which the host cannot provide does not keep the container on.
func (i *instance) takeNextStep(ctx context.Context, spec driver.ServerSpec) (done bool, err error) {
	_, stopping := i.requestedStop()
	pending := pendingFields(i, spec)
	next := nextStep(i, spec, stopping, pending)
	if next == stepStop {
		if len(pending) > 0 && spec.Power != driver.PowerOff && !stopping {
			if waits, err := i.driver.ensureImage(ctx, spec); waits || err != nil {
				return true, err
			}
		}
		return i.stop(ctx, spec)
	}
	if next == stepReplace {
		return i.replace(ctx, spec)
	}
	if err := i.updateContainer(ctx, spec); err != nil {
		return false, err
	}
	if next == stepNone {
		if len(pending) == 0 {
			i.driver.fetches.ReleaseExcept(spec.UID) // in case of a change that was reverted
		}
		return true, nil
	}
	return false, i.changePower(ctx, spec, next)
}

// findInstance returns the one container of a UID.
func (d *Driver) findInstance(ctx context.Context, t driver.Target) (*instance, error) {
	s, err := d.findSummary(ctx, t)
	if err != nil {
		return nil, err
	}
	i, err := d.inspectContainer(ctx, s.ID)
	if errdefs.IsNotFound(err) {
		return nil, driver.Errorf(driver.ErrNotFound, "container %s is gone", engine.ShortID(s.ID))
	}
	return i, err
}

// findSummary finds it by the engine's list alone, which answers even for a container
// that is stuck.
func (d *Driver) findSummary(ctx context.Context, t driver.Target) (container.Summary, error) {
	own, err := d.listContainers(ctx, true, t.UID)
	switch {
	case err != nil:
		return container.Summary{}, err
	case len(own) > 1:
		return container.Summary{}, driver.WithReason(driver.ReasonDuplicate, driver.Errorf(driver.ErrRetry,
			"containers %s and %s both carry the UID %s: remove the wrong one, neither is touched", own[0].ID, own[1].ID, t.UID))
	case len(own) == 0:
		return container.Summary{}, driver.Errorf(driver.ErrNotFound, "there is no container of UID %s", t.UID)
	case t.ID != "" && t.ID != own[0].ID:
		return container.Summary{}, driver.Errorf(driver.ErrNotFound, "the container of UID %s is %s, not %s", t.UID, engine.ShortID(own[0].ID), engine.ShortID(t.ID))
	}
	return own[0], nil
}

func (d *Driver) findID(ctx context.Context, uid types.UID) (string, error) {
	s, err := d.findSummary(ctx, driver.Target{UID: uid})
	return s.ID, err
}

// inspectContainer inspects one container. errdefs.IsNotFound is true of its error if
// there is none.
func (d *Driver) inspectContainer(ctx context.Context, id string) (i *instance, err error) {
	err = d.engine.Read(ctx, "inspect container "+engine.ShortID(id), func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerInspect(ctx, id, client.ContainerInspectOptions{})
		if err == nil {
			i = d.newInstance(res.Container)
		}
		return err
	})
	return i, err
}

// refresh inspects the container again.
func (i *instance) refresh(ctx context.Context) error {
	now, err := i.driver.inspectContainer(ctx, i.id)
	if errdefs.IsNotFound(err) {
		return i.goneError()
	}
	if err == nil {
		*i = *now
	}
	return err
}
