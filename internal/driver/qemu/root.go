// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
)

// settleRoot brings the record of the root disk to the state that the other steps
// require: one disk, and its image under the name that the spec has for it. A stop comes
// before, and needs neither.
func (inst *instance) settleRoot(ctx context.Context, spec driver.ServerSpec) error {
	err := inst.restoreRoot(ctx)
	if err != nil {
		err = fmt.Errorf("restoring the root disk of server %s: %w", inst.UID, err)
	} else {
		err = inst.renameImage(spec)
	}
	if spec.Power == driver.PowerOff {
		return nil
	}
	return inst.driver.dir.Explain(err)
}

// refusedImage returns the image of a spec as refused if the root disk stands on another
// one. What the guest wrote is on top of that image, and unusable on top of any other.
func (inst *instance) refusedImage(spec driver.ServerSpec) *driver.Refused {
	asked := inst.imageOf(spec)
	if inst.Root.Size == 0 || inst.driver.disks.IsSame(inst.Root.Image, asked) {
		return nil
	}
	return &driver.Refused{Field: rootField, Reason: driver.ReasonImageImmutable, Message: fmt.Sprintf(
		"spec.image is %s: the root disk stands on %s and keeps it, with what the guest wrote: put that back, or delete the VirtualMachine, which removes its disks, and create it anew",
		asked.Describe(), inst.Root.Image.Describe())}
}

// renameImage records another name of the image that the root disk stands on as soon as a
// spec has it: what a name stands for may change later.
func (inst *instance) renameImage(spec driver.ServerSpec) error {
	asked := inst.imageOf(spec)
	if inst.Root.Size == 0 || inst.Root.Image.ImageSettings == asked || !inst.driver.disks.IsSame(inst.Root.Image, asked) {
		return nil
	}
	inst.Root.Image.ImageSettings = asked
	return inst.save()
}

// restoreRoot undoes the replacement of a root disk. Older versions made a new disk for
// another image. They kept the old one aside, recorded as Old, until a run with the new
// one had begun. If none had, no guest has written to the new one. restoreRoot may be
// interrupted anywhere: until the end, the record says that the old disk is aside.
func (inst *instance) restoreRoot(ctx context.Context) error {
	if inst.Old == nil || inst.on && inst.Phase == phaseOn {
		return nil
	}
	if inst.on { // and halted: its guest was not resumed
		if err := inst.Quit(ctx); err != nil {
			return err
		}
		inst.on = false
	}
	if _, err := os.Stat(inst.File(oldRootFile)); err != nil {
		return err
	}
	inst.Root = disks.Disk{} // for older versions, which take root.qcow2 for what Root says
	if err := inst.save(); err != nil {
		return err
	}
	if err := os.Remove(inst.File(rootDiskFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Link(inst.File(oldRootFile), inst.File(rootDiskFile)); err != nil {
		return err
	}
	inst.Root, inst.Old, inst.Settings.Image = *inst.Old, nil, inst.Old.Image.ImageSettings
	if err := errors.Join(inst.save(), inst.driver.dir.Sync(inst.Path)); err != nil {
		return err
	}
	inst.driver.Log.Info("Root disk restored: a replacement by an older version was not finished", "uid", inst.UID)
	return os.Remove(inst.File(oldRootFile))
}

// removeOldRoot removes what a replacement by an older version has left of the previous
// disk, once a guest runs with the disk that the record names. While the record says that
// the old disk is aside, or names none, that may still be needed.
func (inst *instance) removeOldRoot() {
	if inst.Old != nil || inst.Root.Size == 0 {
		return
	}
	err := os.Remove(inst.File(oldRootFile))
	switch {
	case err == nil:
		inst.driver.Log.Info("Old root disk removed: an older version had replaced it, and the guest runs with the new one", "uid", inst.UID)
	case !errors.Is(err, fs.ErrNotExist):
		inst.driver.Log.Info("Old root disk could not be removed", "uid", inst.UID, "cause", err.Error())
	}
}
