// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cmp"
	"context"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
)

// outputTail is how much of QEMU's log the end of a run includes.
const outputTail = 1 << 10

// accelerator returns the accelerator that a machine runs under.
func (inst *instance) accelerator() string { return cmp.Or(inst.Accelerator, inst.findAccelerator()) }

// findAccelerator returns the accelerator of a machine that an older version started, which
// only its command line names. The accelerator does not change within a run.
func (inst *instance) findAccelerator() string {
	type found struct{ run, accel string }
	if before, _ := inst.driver.foundAccel.Load(inst.UID); before != nil && before.(found).run == inst.Run {
		return before.(found).accel
	}
	accel := inst.FindAccelerator()
	inst.driver.foundAccel.Store(inst.UID, found{inst.Run, accel})
	return accel
}

// killStrays ends machines of a UID whose directory, or the run lock in it, was removed
// while they ran, as by restoring a backup. The caller knows that no QEMU holds the lock.
func (d *Driver) killStrays(ctx context.Context, uid types.UID) error {
	// The kernel reports a path without symbolic links.
	vms, err := filepath.EvalSymlinks(d.dir.Path(vmsDir))
	if err != nil {
		return d.dir.Explain(err)
	}
	lost := machine.Machine{Path: filepath.Join(vms, string(uid)), UUID: string(uid)}
	return lost.KillStrays(ctx, func(pid int) (onKilled func()) {
		d.Log.Info("Machine ended: its directory, or the run lock in it, was removed", "uid", uid, "pid", pid)
		group := cgroup.GroupOf(pid, string(uid))
		return func() { d.removeGroup(ctx, group) }
	})
}
