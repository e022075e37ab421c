// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
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
		return d.releaseServer(ctx, s, lock)
	case err == nil:
		return d.removeServer(ctx, s, lock)
	}
	lock.Release()
	return err
}

// removeRemains removes what remains of a server, once there is no directory.
func (d *Driver) removeRemains(ctx context.Context, t driver.Target, lock *statedir.Lock, none error) error {
	if there, err := d.InstanceOf(t.UID).HasDirectory(); there || err != nil {
		lock.Release()
		return none
	}
	if err := d.KillStrays(ctx, t.UID); err != nil {
		lock.Release()
		return err
	}
	d.forgetServer(t.UID, lock)
	return none
}

// forgetServer removes what there is of a server beside its directory.
func (d *Driver) forgetServer(uid types.UID, lock *statedir.Lock) {
	d.ReportedExits.Delete(uid)
	d.RemoveExits(uid, "")
	d.InstanceOf(uid).RemoveNotification()
	lock.Remove()
}

// removeServer ends the server, whose disk is not needed any more, and removes all that belongs
// to it.
func (d *Driver) removeServer(ctx context.Context, inst *instance.Instance, lock *statedir.Lock) error {
	if inst.On {
		if err := inst.Kill(ctx); err != nil {
			lock.Release()
			return err
		}
	}
	err := d.KillStrays(ctx, inst.UID) // which may hide that they run
	if err == nil {
		err = inst.EndSupervisor(ctx)
	}
	if err != nil {
		lock.Release()
		return err
	}
	d.RemoveGroup(ctx, inst.CPUGroup)
	journal.Record(ctx, journal.ActionDelete, snapshotOf(inst), nil)
	if err := d.StateDir.Discard(inst.Path); err != nil {
		lock.Release()
		return d.StateDir.Explain(err)
	}
	d.forgetServer(inst.UID, lock)
	return nil
}

// releaseServer marks a server as retained first, so that a release which is interrupted is
// finished by the next call. After that, nothing is left of it beside its directory.
func (d *Driver) releaseServer(ctx context.Context, inst *instance.Instance, lock *statedir.Lock) error {
	var err error
	if !inst.On {
		err = d.KillStrays(ctx, inst.UID)
	}
	if err == nil {
		journal.Record(ctx, journal.ActionRelease, snapshotOf(inst), nil)
		inst.Retained = true
		err = d.StateDir.Explain(inst.Save())
	}
	if err == nil {
		err = d.StateDir.Explain(inst.MoveToRetained())
	}
	if err != nil {
		lock.Release()
		return err
	}
	d.forgetServer(inst.UID, lock)
	return nil
}
