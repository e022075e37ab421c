// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/statedir"
)

// Delete removes a server, or releases it if it is to be retained.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	lock, err := d.beginChange(ctx, t)
	if err != nil {
		return err
	}
	if err := d.fetches.Abandon(ctx, t.UID); err != nil {
		lock.Release()
		return err
	}
	s, err := d.findServer(ctx, t)
	switch {
	case errors.Is(err, driver.ErrNotFound):
		return d.removeRemains(ctx, t, lock, err)
	case driver.ReasonOf(err) == driver.ReasonNameConflict:
		err = driver.Errorf(driver.ErrNotFound, "this cluster has no server of UID %s", t.UID)
	case err == nil && retain:
		return s.releaseServer(ctx, lock)
	case err == nil:
		return s.removeServer(ctx, lock)
	}
	lock.Release()
	return err
}

// removeRemains removes what remains of a server, once there is no directory.
func (d *Driver) removeRemains(ctx context.Context, t driver.Target, lock *statedir.Lock, none error) error {
	if there, err := d.instanceOf(t.UID).hasDirectory(); there || err != nil {
		lock.Release()
		return none
	}
	if err := d.killStrays(ctx, t.UID); err != nil {
		lock.Release()
		return err
	}
	d.forgetServer(t.UID, lock)
	return none
}

// forgetServer removes what there is of a server beside its directory.
func (d *Driver) forgetServer(uid types.UID, lock *statedir.Lock) {
	d.powerPresses.Delete(uid)
	d.unansweredQueries.Delete(d.instanceOf(uid).Path)
	d.reportedExits.Delete(uid)
	d.removeExits(uid)
	d.instanceOf(uid).removeNotification()
	lock.Remove()
}

// removeServer ends the server, whose disk is not needed any more, and removes all that belongs
// to it.
func (inst *instance) removeServer(ctx context.Context, lock *statedir.Lock) error {
	journal.Record(ctx, journal.ActionDelete, nil, nil)
	if inst.on {
		if err := inst.Kill(ctx); err != nil {
			lock.Release()
			return err
		}
	}
	inst.driver.removeGroup(ctx, inst.CPUGroup)
	if err := inst.driver.dir.Discard(inst.Path); err != nil {
		lock.Release()
		return inst.driver.dir.Explain(err)
	}
	inst.driver.forgetServer(inst.UID, lock)
	return nil
}

// releaseServer marks a server as retained first, so that a release which is interrupted is
// finished by the next call. After that, nothing is left of it beside its directory.
func (inst *instance) releaseServer(ctx context.Context, lock *statedir.Lock) error {
	journal.Record(ctx, journal.ActionRelease, nil, nil)
	inst.Retained = true
	err := inst.driver.dir.Explain(inst.save())
	if err == nil {
		err = inst.driver.dir.Explain(inst.moveToRetained())
	}
	if err != nil {
		lock.Release()
		return err
	}
	inst.driver.forgetServer(inst.UID, lock)
	return nil
}

// moveToRetained frees the UID of a server that was marked. Its QEMU runs on in the
// directory, wherever that is.
func (inst *instance) moveToRetained() error {
	// A search for the images in use must not miss it during the move.
	release, err := inst.driver.images.Hold()
	if err != nil {
		return err
	}
	defer release()
	if err := os.Rename(inst.Path, inst.driver.retainedPath(inst.UID, inst.ID)); err != nil {
		return fmt.Errorf("putting the released server %s aside: %w", inst.UID, err)
	}
	inst.notifyWatchers()
	return nil
}
