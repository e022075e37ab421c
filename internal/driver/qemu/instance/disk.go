// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"cloudnative.tw/drover/internal/crashpoint"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/driver/qemu/record"
	"cloudnative.tw/drover/internal/machine/control"
	"cloudnative.tw/drover/internal/machine/launch"
)

// RootField is the field that names the image of the root disk.
const RootField = "image"

// VolumeField returns the field that names the image of a volume.
func VolumeField(i int) string { return fmt.Sprintf("volumes[%d].source.image", i) }

// MakeRoot makes the root disk at a path. A machine whose kernel is booted directly may
// do without an image, and without a disk.
func (h *Host) MakeRoot(path string, spec driver.ServerSpec, requested disks.ImageSettings) (disks.Disk, error) {
	if requested.Source == "" && spec.Image.Kernel != nil && spec.RootDiskBytes == 0 {
		return disks.Disk{}, nil
	}
	if requested.Source == "" && spec.Image.Kernel == nil {
		_, err := h.Disks.OpenImage(RootField, requested)
		return disks.Disk{}, err
	}
	return h.Disks.Make(path, RootOrder(spec, requested))
}

// RootOrder returns what the root disk is to be.
func RootOrder(spec driver.ServerSpec, requested disks.ImageSettings) disks.Order {
	return disks.Order{ImageField: RootField, SizeField: "resource.rootDisk", Image: requested, Size: spec.RootDiskBytes}
}

// prepareRoot makes the root disk where there is none yet. An existing one stays,
// whatever image the spec names now: it holds what the guest wrote.
func (inst *Instance) prepareRoot(spec driver.ServerSpec, files *launch.Files) (*launch.Drive, error) {
	if inst.NeedsRoot(spec) {
		if err := inst.addRoot(spec); err != nil {
			return nil, inst.Host.StateDir.Explain(err)
		}
	}
	if inst.Root.Size == 0 {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	return inst.Host.Disks.Open(files, RootField, inst.File(RootDiskFile), inst.Root, false)
}

// NeedsRoot reports whether a machine without a root disk is to have one.
func (inst *Instance) NeedsRoot(spec driver.ServerSpec) bool {
	return inst.Root.Size == 0 && (spec.RootDiskBytes > 0 || inst.ImageOf(spec).Source != "")
}

// addRoot moves the root disk into place before it is recorded.
func (inst *Instance) addRoot(spec driver.ServerSpec) error {
	tmp, remove, err := inst.Host.StateDir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	root, err := inst.Host.MakeRoot(filepath.Join(tmp, RootDiskFile), spec, inst.ImageOf(spec))
	if err != nil {
		return err
	}
	if err := inst.placeDisk(filepath.Join(tmp, RootDiskFile)); err != nil {
		return err
	}
	inst.Root = root
	return inst.saveDisks()
}

// prepareVolumes makes the volumes that do not exist yet. One that the spec does not name
// any more stays where it is, in case the spec names it again.
func (inst *Instance) prepareVolumes(spec driver.ServerSpec, files *launch.Files) ([]launch.Volume, error) {
	volumes := make([]launch.Volume, 0, len(spec.Volumes))
	for i, v := range spec.Volumes {
		if _, made := inst.Volumes[v.Name]; !made {
			if err := inst.makeVolume(i, v); err != nil {
				return nil, inst.Host.StateDir.Explain(err)
			}
		}
		attached, err := inst.Host.Disks.Open(files, VolumeField(i), inst.File(VolumeFile(v.Name)), inst.Volumes[v.Name], v.ReadOnly)
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, launch.Volume{Name: v.Name, Drive: *attached})
	}
	return volumes, nil
}

// VolumeFile returns the name of the file of a volume.
func VolumeFile(name string) string { return "volume-" + name + ".qcow2" }

// VolumeOrder returns what a volume is to be.
func VolumeOrder(i int, v driver.Volume) disks.Order {
	return disks.Order{
		ImageField: VolumeField(i), SizeField: fmt.Sprintf("volumes[%d].size (%s)", i, v.Name), Image: imageOfVolume(v), Size: v.SizeBytes,
	}
}

// makeVolume moves a volume into place before it is recorded.
func (inst *Instance) makeVolume(i int, v driver.Volume) error {
	tmp, remove, err := inst.Host.StateDir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	path := filepath.Join(tmp, VolumeFile(v.Name))
	made, err := inst.Host.Disks.Make(path, VolumeOrder(i, v))
	if err != nil {
		return err
	}
	if err := inst.placeDisk(path); err != nil {
		return err
	}
	inst.Volumes = maps.Clone(inst.Volumes)
	if inst.Volumes == nil {
		inst.Volumes = map[string]disks.Disk{}
	}
	inst.Volumes[v.Name] = made
	return inst.saveDisks()
}

// saveDisks replaces the record, and returns once a power cut leaves the new one. A guest may
// write to a disk only after that: a disk that holds data and has no record is not used.
func (inst *Instance) saveDisks() error {
	if err := inst.Save(); err != nil {
		return err
	}
	return inst.Host.StateDir.Sync(inst.Path)
}

// placeDisk moves a new disk to where the record will name it. A disk that is there
// already was left by an interrupted call, and holds no data. If it does hold data, the
// record lost it, as one that was restored without its disks, and the disk stays.
func (inst *Instance) placeDisk(made string) error {
	place := inst.File(filepath.Base(made))
	err := disks.CheckUnwritten(place)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return driver.Errorf(driver.ErrRetry, "disk %s is there, and %s does not name it: restore that file, or move the disk away: %w", place, RecordFile, err)
	}
	point := crashpoint.Begin("place", place)
	err = os.Rename(made, place)
	point.End()
	if err != nil {
		return err
	}
	return inst.Host.StateDir.Sync(inst.Path) // a record must not name a disk that a power cut takes
}

func imageOfVolume(v driver.Volume) disks.ImageSettings {
	if v.Image == nil {
		return disks.ImageSettings{}
	}
	return disks.ImageSettings{Source: v.Image.Source, Checksum: v.Image.Checksum}
}

// SizesToGrow returns the disks, by QEMU's name for them, that the spec wants larger and
// that can grow as they are attached now.
func (inst *Instance) SizesToGrow(spec driver.ServerSpec) map[string]int64 {
	sizes := map[string]int64{}
	if inst.Root.Size > 0 && spec.RootDiskBytes > inst.Root.Size {
		sizes[launch.RootNode] = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		writable := slices.ContainsFunc(inst.Settings.Volumes, func(a record.VolumeSettings) bool { return a.Name == v.Name && !a.ReadOnly })
		if have := inst.Volumes[v.Name].Size; writable && v.SizeBytes > have {
			sizes[launch.VolumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// diskSizes returns the sizes of the disks that can grow, by QEMU's name for them.
func (inst *Instance) diskSizes() map[string]int64 {
	sizes := map[string]int64{}
	if inst.Root.Size > 0 {
		sizes[launch.RootNode] = inst.Root.Size
	}
	for _, v := range inst.Settings.Volumes {
		if !v.ReadOnly {
			sizes[launch.VolumeNode(v.Name)] = inst.Volumes[v.Name].Size
		}
	}
	return sizes
}

// maxDisk bounds what a supervisor may claim a disk to have: one that was grown before can have more than is asked for.
const maxDisk = 1 << 50

// GrowDisks enlarges the disks of a running QEMU to what the spec says.
func (inst *Instance) GrowDisks(ctx context.Context, spec driver.ServerSpec) error {
	wanted := inst.SizesToGrow(spec)
	if len(wanted) == 0 {
		return nil
	}
	sizes := control.Sizes{RootDisk: wanted[launch.RootNode], Volumes: map[string]int64{}}
	for _, v := range spec.Volumes {
		if size, ok := wanted[launch.VolumeNode(v.Name)]; ok {
			sizes.Volumes[v.Name] = size
		}
	}
	err := inst.call(ctx, "grow", func(ctx context.Context, c *control.Client) (err error) {
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

// RenameImage records another name of the image that the root disk stands on as soon as a
// spec has it: what a name stands for may change later.
func (inst *Instance) RenameImage(spec driver.ServerSpec) error {
	requested := inst.ImageOf(spec)
	if inst.Root.Size == 0 || inst.Root.Image.ImageSettings == requested || !inst.Host.Disks.IsSame(inst.Root.Image, requested) {
		return nil
	}
	inst.Root.Image.ImageSettings = requested
	err := inst.Save()
	if spec.Power == driver.PowerOff {
		return nil // a stop does not need it
	}
	return inst.Host.StateDir.Explain(err)
}
