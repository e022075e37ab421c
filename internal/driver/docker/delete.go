// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// Delete implements driver.Driver. It needs only the engine's list to find the
// container, so that one which cannot be inspected can still be deleted.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	if err := driver.CheckUID(t.UID); err != nil {
		return err
	}
	ctx, cancel := d.bound(ctx)
	defer cancel()
	release, err := d.locks.acquire(ctx, t.UID)
	if err != nil {
		return err
	}
	defer release()

	if err := d.fetches.Abandon(ctx, t.UID); err != nil {
		return err
	}
	s, err := d.findSummary(ctx, t)
	switch {
	case err != nil:
		return err
	case retain:
		return d.retain(ctx, s.ID, summaryName(s))
	}
	return d.remove(ctx, s.ID, true)
}

// remove removes the container together with its anonymous volumes.
func (d *Driver) remove(ctx context.Context, id string, force bool) error {
	err := d.change(ctx, "remove container "+shortID(id), func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerRemove(ctx, id, client.ContainerRemoveOptions{Force: force, RemoveVolumes: true})
		return err
	})
	switch {
	case isGone(err):
		return driver.Errorf(driver.ErrNotFound, "%w", err)
	case isConflict(err) && force:
		return nil // its removal is under way already
	case isConflict(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

// retain marks the container as released by renaming it, and does nothing else.
func (d *Driver) retain(ctx context.Context, id, name string) error {
	if name == "" {
		name = shortID(id)
	}
	err := d.rename(ctx, id, name+RetainedSuffix)
	if isConflict(err) {
		err = d.rename(ctx, id, name+"."+shortID(id)+RetainedSuffix)
	}
	switch {
	case isGone(err):
		return driver.Errorf(driver.ErrNotFound, "%w", err)
	case isConflict(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

func (d *Driver) rename(ctx context.Context, id, name string) error {
	return d.change(ctx, "rename container "+shortID(id)+" to "+name, func(ctx context.Context, c *client.Client) error {
		_, err := c.ContainerRename(ctx, id, client.ContainerRenameOptions{NewName: name})
		return err
	})
}
