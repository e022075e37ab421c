// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
)

// Delete removes a server, or releases it if it is to be retained.
func (d *Driver) Delete(ctx context.Context, t driver.Target, retain bool) error {
	lock, err := d.beginChange(ctx, t)
	if err != nil {
		return err
	}
	isGone, err := d.endServer(ctx, t, retain)
	if !isGone {
		lock.Release()
		return err
	}
	d.ReportedExits.Delete(t.UID)
	d.Exits.RemoveAll(t.UID, "")
	d.RemoveNotification(t.UID)
	lock.Remove()
	return err
}

// endServer ends a server, and reports whether nothing is left of it but what is beside its
// directory.
func (d *Driver) endServer(ctx context.Context, t driver.Target, retain bool) (isGone bool, err error) {
	if err := d.fetches.Abandon(ctx, t.UID); err != nil {
		return false, err
	}
	s, err := d.findServer(ctx, t)
	switch {
	case errors.Is(err, driver.ErrNotFound) && d.InstanceOf(t.UID).IsGone():
		if err := errors.Join(d.KillStrays(ctx, t.UID), d.InstanceOf(t.UID).Supervisor().KillAll(ctx)); err != nil {
			return false, err
		}
		return true, err
	case driver.ReasonOf(err) == driver.ReasonNameConflict:
		return false, driver.Errorf(driver.ErrNotFound, "no server of this cluster has the UID %s", t.UID)
	case err != nil:
		return false, err
	case retain:
		err = d.releaseServer(ctx, s)
	default:
		err = d.removeServer(ctx, s)
	}
	return err == nil, err
}

// removeServer ends the server, whose disk is not needed any more, and removes its directory.
func (d *Driver) removeServer(ctx context.Context, inst *instance.Instance) error {
	if inst.On {
		if err := inst.Machine.Kill(ctx); err != nil {
			return err
		}
	}
	if err := d.KillStrays(ctx, inst.UID); err != nil { // which may hide that they run
		return err
	}
	if err := inst.Supervisor().End(ctx); err != nil {
		return err
	}
	d.RemoveGroup(ctx, inst.CPUGroup)
	d.Addresses.Release(inst.UID, inst.Address.Addr())
	journal.Record(ctx, journal.ActionDelete, snapshotOf(inst), nil)
	return d.StateDir.Explain(d.StateDir.Discard(inst.Machine.Path))
}

// releaseServer marks a server as retained first, so that a release which is interrupted is
// finished by the next call. After that, nothing is left of it beside its directory.
func (d *Driver) releaseServer(ctx context.Context, inst *instance.Instance) error {
	if !inst.On {
		if err := d.KillStrays(ctx, inst.UID); err != nil {
			return err
		}
	}
	journal.Record(ctx, journal.ActionRelease, snapshotOf(inst), nil)
	inst.Retained = true
	if err := inst.Save(); err != nil {
		return d.StateDir.Explain(err)
	}
	return d.StateDir.Explain(inst.MoveToRetained(ctx))
}
