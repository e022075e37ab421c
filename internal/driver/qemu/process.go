// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/internal/machine/cgroup"
)

// outputTail is how much of QEMU's log the end of a run includes.
const outputTail = 1 << 10

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
