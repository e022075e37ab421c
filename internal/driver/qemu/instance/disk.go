// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"fmt"
	"maps"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/containerboot"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/image"
	"cloudnative.tw/drover/internal/image/source"
	"cloudnative.tw/drover/internal/machine/control"
)

// RootField is the field that names the image of the root disk.
const RootField = "image"

// VolumeField returns the field that names the image of a volume.
func VolumeField(i int) string { return fmt.Sprintf("volumes[%d].source.image", i) }

// MakeRoot makes the root disk at a path. A machine that boots a kernel directly needs neither
// an image nor a disk.
func (h *Host) MakeRoot(path string, spec driver.ServerSpec, requested image.Ref) (disks.Disk, error) {
	isUnnamed := requested.Source.Kind == source.None
	if isUnnamed && spec.Image.Kernel != nil && spec.RootDiskBytes == 0 {
		return disks.Disk{}, nil
	}
	if isUnnamed && spec.Image.Kernel == nil {
		_, err := h.Disks.FindImage(WantedRoot(spec, requested))
		return disks.Disk{}, err
	}
	made, err := h.Disks.Make(path, WantedRoot(spec, requested))
	if err != nil {
		return made, err
	}
	return made, containerboot.CheckFields(spec, made.Image.IsContainer())
}

// WantedRoot returns the root disk that a spec asks for.
func WantedRoot(spec driver.ServerSpec, requested image.Ref) disks.Wanted {
	return disks.Wanted{ImageField: RootField, SizeField: "resource.rootDisk", Image: requested, Size: spec.RootDiskBytes}
}

// VolumeFile returns the name of the file of a volume.
func VolumeFile(name string) string { return "volume-" + name + ".qcow2" }

// WantedVolume returns the disk that a spec asks for as its volume i.
func WantedVolume(i int, v driver.Volume) disks.Wanted {
	wanted := disks.Wanted{ImageField: VolumeField(i), SizeField: fmt.Sprintf("volumes[%d].size (%s)", i, v.Name), Size: v.SizeBytes, HasFileSystem: v.MountPath != ""}
	if v.Image != nil {
		wanted.Image = disks.RefOf(*v.Image)
	}
	return wanted
}

// maxDisk bounds the size in bytes that a supervisor may report for a disk, which may have been grown beyond its spec.
const maxDisk = 1 << 50

// GrowDisks enlarges the disks of a running QEMU to the sizes of the spec.
func (inst *Instance) GrowDisks(ctx context.Context, spec driver.ServerSpec) error {
	sizes, found := inst.SizesToGrow(spec)
	if !found {
		return nil
	}
	err := inst.SupervisorCalls().callSupervisor(ctx, "grow", func(ctx context.Context, c *control.Client) (err error) {
		sizes, err = c.Grow(ctx, sizes)
		return err
	})
	if err != nil {
		return err
	}
	inst.Root.Size = max(inst.Root.Size, min(sizes.RootDisk, maxDisk))
	inst.Volumes = maps.Clone(inst.Volumes)
	for name, size := range sizes.Volumes {
		made, ok := inst.Volumes[name]
		if made.Size = max(made.Size, min(size, maxDisk)); ok {
			inst.Volumes[name] = made
		}
	}
	return inst.Host.StateDir.Explain(inst.Save())
}

// RenameImage records the new name if the spec names the root disk's image by another name. It does
// so at once, because the name may later stand for another image.
func (inst *Instance) RenameImage(spec driver.ServerSpec) error {
	requested := inst.ImageOf(spec)
	if !inst.KeepsRoot(spec) || inst.Root.Image.Ref == requested || !inst.Host.Images.IsSame(inst.Root.Image, requested) {
		return nil
	}
	inst.Root.Image.Ref = requested
	err := inst.Save()
	if spec.Power == driver.PowerOff {
		return nil // a stop must succeed on a full disk, too
	}
	return inst.Host.StateDir.Explain(err)
}
