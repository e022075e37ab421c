// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"cmp"
	"context"
	"errors"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/driver/docker/volumes"
)

// Delete implements driver.Driver. It needs only the engine's list to find the
// container, so that one which cannot be inspected can still be deleted.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	ctx, end, err := d.calls.BeginChange(ctx, t.UID)
	if err != nil {
		return err
	}
	defer end()
	if err := d.fetches.Abandon(ctx, t.UID); err != nil {
		return err
	}
	s, err := d.findSummary(ctx, t)
	switch {
	case errors.Is(err, driver.ErrNotFound) && !retain: // perhaps an earlier call removed the container only
		return cmp.Or(d.removeVolumes(ctx, t.UID), err)
	case err != nil:
		return err
	case retain:
		return instanceFromSummary(d, s).retainContainer(ctx)
	}
	if err := instanceFromSummary(d, s).removeContainer(ctx, true); err != nil {
		return err
	}
	return d.removeVolumes(ctx, t.UID)
}

// removeVolumes removes the volumes of a server whose container is gone.
func (d *Driver) removeVolumes(ctx context.Context, uid types.UID) error {
	return volumes.Remove(ctx, d.engine, uid, uidFilter(uid), LabelCluster+"="+d.Options.ClusterID)
}

// removeContainer removes the container together with its anonymous volumes.
func (i *instance) removeContainer(ctx context.Context, force bool) error {
	err := changeContainer(ctx, i, "remove container "+engine.ShortID(i.id), (*client.Client).ContainerRemove,
		client.ContainerRemoveOptions{Force: force, RemoveVolumes: true})
	if errdefs.IsConflict(err) && force {
		return nil // its removal is under way already
	}
	return explainRefusal(err)
}

// retainContainer marks the container as released by renaming it, and does nothing else.
func (i *instance) retainContainer(ctx context.Context) error {
	name := cmp.Or(i.name, engine.ShortID(i.id))
	err := i.renameContainer(ctx, name+RetainedSuffix)
	if errdefs.IsConflict(err) {
		err = i.renameContainer(ctx, name+"."+engine.ShortID(i.id)+RetainedSuffix)
	}
	return explainRefusal(err)
}

func (i *instance) renameContainer(ctx context.Context, name string) error {
	return changeContainer(ctx, i, "rename container "+engine.ShortID(i.id)+" to "+name, (*client.Client).ContainerRename,
		client.ContainerRenameOptions{NewName: name})
}

// explainRefusal classifies an error of removing or releasing a container.
func explainRefusal(err error) error {
	switch {
	case errdefs.IsNotFound(err):
		return driver.Errorf(driver.ErrNotFound, "%w", err)
	case errdefs.IsConflict(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}
