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
	lock, err := beginChange(ctx, d.Host, t)
	if err != nil {
		return err
	}
	isGone, err := d.endServer(ctx, t, retain)
	if !isGone {
		lock.Release()
		return err
	}
	d.Host.ReportedExits.Delete(t.UID)
	d.Host.Exits.RemoveAll(t.UID, "")
	d.Host.RemoveNotification(t.UID)
	lock.Remove()
	return err
}

// endServer ends a server, and reports whether its directory and everything in the directory is
// gone.
func (d *Driver) endServer(ctx context.Context, t driver.Target, retain bool) (isGone bool, err error) {
	if err := d.fetches.Abandon(ctx, t.UID); err != nil {
		return false, err
	}
	s, err := findServer(ctx, d.Host, t)
	switch {
	case errors.Is(err, driver.ErrNotFound) && d.Host.InstanceOf(t.UID).IsGone():
		if err := errors.Join(d.Host.KillStrays(ctx, t.UID), d.Host.InstanceOf(t.UID).Supervisor().KillAll(ctx)); err != nil {
			return false, err
		}
		return true, err
	case driver.ReasonOf(err) == driver.ReasonNameConflict:
		return false, driver.Errorf(driver.ErrNotFound, "no server of this cluster has the UID %s", t.UID)
	case err != nil:
		return false, err
	case retain:
		err = releaseServer(ctx, s)
	default:
		err = removeServer(ctx, s)
	}
	return err == nil, err
}

// removeServer ends the server, whose disk is not needed any more, and removes its directory.
func removeServer(ctx context.Context, inst *instance.Instance) error {
	if inst.On {
		if err := inst.Machine.Kill(ctx); err != nil {
			return err
		}
	}
	if err := inst.Host.KillStrays(ctx, inst.UID); err != nil { // which may hide that they run
		return err
	}
	if err := inst.Supervisor().End(ctx); err != nil {
		return err
	}
	inst.Host.RemoveGroup(ctx, inst.CPUGroup)
	inst.Host.Addresses.Release(inst.UID, inst.Address.Addr())
	journal.Record(ctx, journal.ActionDelete, snapshotOf(inst), nil)
	return inst.Host.StateDir.Explain(inst.Host.StateDir.Discard(inst.Machine.Path))
}

// releaseServer marks a server as retained first, so that a release which is interrupted is
// finished by the next call. After that, nothing is left of it beside its directory.
func releaseServer(ctx context.Context, inst *instance.Instance) error {
	if !inst.On {
		if err := inst.Host.KillStrays(ctx, inst.UID); err != nil {
			return err
		}
	}
	journal.Record(ctx, journal.ActionRelease, snapshotOf(inst), nil)
	inst.Retained = true
	if err := inst.Save(); err != nil {
		return inst.Host.StateDir.Explain(err)
	}
	return inst.Host.StateDir.Explain(inst.MoveToRetained(ctx))
}
