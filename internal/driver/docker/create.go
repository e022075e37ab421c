// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
)

// createServer makes the container of a UID that has none, once its image is present. It
// does not check for the image first: the engine refuses to create one without.
func (d *Driver) createServer(ctx context.Context, spec driver.ServerSpec) (driver.Server, error) {
	if err := d.checkCapacity(ctx, spec); err != nil {
		return driver.Server{}, err
	}
	if spec.Image.PullPolicy != driver.PullAlways && len(d.fetches.PendingServers(spec.UID)) == 0 {
		i, err := d.createInstance(ctx, spec)
		if err == nil {
			return i.convergeTo(ctx, spec)
		}
		if driver.ReasonOf(err) != driver.ReasonImageUnavailable {
			return driver.Server{}, err
		}
	}
	if waits, err := d.ensureImage(ctx, spec); err != nil {
		return driver.Server{}, err
	} else if waits {
		return d.fetches.PendingServer(spec.UID), nil
	}
	i, err := d.createInstance(ctx, spec)
	if err != nil {
		return driver.Server{}, err
	}
	return i.convergeTo(ctx, spec)
}

// createInstance creates a container, starts it unless it is to be off, and
// inspects it.
func (d *Driver) createInstance(ctx context.Context, spec driver.ServerSpec) (*instance, error) {
	image, name := d.imageReference(spec), containerName(spec)
	var id string
	err := d.engine.Change(ctx, "create container "+name, func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerCreate(ctx, d.createOptions(spec, name, image))
		id = res.ID
		return err
	})
	if errdefs.IsConflict(err) {
		return d.findNameHolder(ctx, spec, name)
	}
	if err != nil {
		return nil, explainCreate(spec, image, err)
	}
	d.fetches.ReleaseExcept(spec.UID)
	i := &instance{driver: d, id: id}
	if spec.Power != driver.PowerOff {
		return i, i.changePower(ctx, spec, stepStart) // it is new, so no inspection is needed first
	}
	return i, i.refresh(ctx)
}

var (
	diskFull       = regexp.MustCompile(`no space left on device`)
	missingCommand = regexp.MustCompile(`(?i)no command specified`)
	cpuOutOfRange  = regexp.MustCompile(`(?i)range of CPUs is from`)
)

// explainCreate classifies the engine's refusal to create a container.
func explainCreate(spec driver.ServerSpec, image string, err error) error {
	switch text := err.Error(); {
	case errdefs.IsNotFound(err):
		return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "image %s: %w", image, err))
	case missingCommand.MatchString(text):
		return driver.Errorf(driver.ErrInvalid, "spec.image.source: image %s has no command to run: %w", image, err)
	case diskFull.MatchString(text), cpuOutOfRange.MatchString(text):
		return driver.Errorf(driver.ErrExhausted, "%w", err)
	case errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrInvalid, "the engine refuses %s/%s: %w", spec.Namespace, spec.Name, err)
	}
	return err
}

const (
	nameHolderTries = 30
	nameHolderPause = 100 * time.Millisecond
)

// findNameHolder returns the container that has the name, if that is this server's:
// another leader has just created it. Any other holder is an error. Docker reserves the
// name before the container becomes visible, so this retries for a while.
func (d *Driver) findNameHolder(ctx context.Context, spec driver.ServerSpec, name string) (*instance, error) {
	for range nameHolderTries {
		if i, err := d.findInstance(ctx, spec.Target); !errors.Is(err, driver.ErrNotFound) {
			return i, err
		}
		other, err := d.inspectContainer(ctx, name)
		switch {
		case err == nil && (other.uid != spec.UID || other.cluster != d.ClusterID):
			return nil, nameConflictError(other)
		case err == nil:
			return other, nil
		case !errdefs.IsNotFound(err):
			return nil, err
		}
		if err := d.waitFor(ctx, nameHolderPause); err != nil {
			return nil, err
		}
	}
	return nil, driver.Errorf(driver.ErrRetry, "the container name %s is taken by a creation under way", name)
}

func nameConflictError(other *instance) error {
	owner := "is not Drover's"
	if other.cluster != "" {
		owner = fmt.Sprintf("belongs to VirtualMachine %s/%s of UID %s in the cluster %s", other.namespace, other.vmName, other.uid, other.cluster)
	}
	return driver.WithReason(driver.ReasonNameConflict, driver.Errorf(driver.ErrRetry,
		"container %s has the name %s, which this server needs, and %s: rename or remove it, it is left alone", engine.ShortID(other.id), other.name, owner))
}

// waitFor pauses for a short time, or until ctx ends.
func (d *Driver) waitFor(ctx context.Context, pause time.Duration) error {
	timer := d.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C():
		return nil
	case <-ctx.Done():
		return driver.Errorf(driver.ErrRetry, "out of time: %w", ctx.Err())
	}
}
