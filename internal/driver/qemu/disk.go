// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/disks"
	"cloudnative.tw/drover/internal/image/diskimage"
	"cloudnative.tw/drover/internal/machine"
)

// rootField is the field that names the image of the root disk.
const rootField = "image"

// volumeField returns the field that names the image of a volume.
func volumeField(i int) string { return fmt.Sprintf("volumes[%d].source.image", i) }

// checkDisks refuses sizes that the existing disks rule out.
func (inst *instance) checkDisks(spec driver.ServerSpec) error {
	const grows = "it may only grow, and the server has"
	if spec.RootDiskBytes != 0 && spec.RootDiskBytes < inst.Root.Size {
		return driver.Errorf(driver.ErrInvalid, "resource.rootDisk is %d bytes: %s %d", spec.RootDiskBytes, grows, inst.Root.Size)
	}
	for i, v := range spec.Volumes {
		switch have := inst.Volumes[v.Name].Size; {
		case v.SizeBytes < have:
			return driver.Errorf(driver.ErrInvalid, "volumes[%d].size (%s) is %d bytes: %s %d", i, v.Name, v.SizeBytes, grows, have)
		case have > 0 && v.SizeBytes > have && v.ReadOnly:
			return driver.Errorf(driver.ErrUnsupported, "volumes[%d].size (%s) is %d bytes: what is readOnly cannot grow, and the server has %d: leave readOnly out until it has grown",
				i, v.Name, v.SizeBytes, have)
		}
	}
	return nil
}

// makeRoot makes the root disk at a path. A machine whose kernel is booted directly may
// do without an image, and without a disk.
func (d *Driver) makeRoot(path string, spec driver.ServerSpec, asked disks.ImageSettings) (disks.Disk, error) {
	if asked.Source == "" && spec.Image.Kernel != nil && spec.RootDiskBytes == 0 {
		return disks.Disk{}, nil
	}
	if asked.Source == "" && spec.Image.Kernel == nil {
		_, err := d.disks.OpenImage(rootField, asked)
		return disks.Disk{}, err
	}
	return d.disks.Make(path, rootOrder(spec, asked))
}

func rootOrder(spec driver.ServerSpec, asked disks.ImageSettings) disks.Order {
	return disks.Order{ImageField: rootField, SizeField: "resource.rootDisk", Image: asked, Size: spec.RootDiskBytes}
}

// prepareRoot makes the root disk where there is none yet. An existing one stays,
// whatever image the spec names now: it holds what the guest wrote.
func (inst *instance) prepareRoot(spec driver.ServerSpec, files *machine.Files) (*machine.Drive, error) {
	if inst.needsRoot(spec) {
		if err := inst.addRoot(spec); err != nil {
			return nil, inst.driver.dir.Explain(err)
		}
	}
	if inst.Root.Size == 0 {
		return nil, nil //nolint:nilnil // Nil is for no disk.
	}
	return inst.driver.disks.Open(files, rootField, inst.File(rootDiskFile), inst.Root, false)
}

// needsRoot reports whether a machine without a root disk is to have one.
func (inst *instance) needsRoot(spec driver.ServerSpec) bool {
	return inst.Root.Size == 0 && (spec.RootDiskBytes > 0 || inst.imageOf(spec).Source != "")
}

// addRoot moves the root disk into place before it is recorded.
func (inst *instance) addRoot(spec driver.ServerSpec) error {
	tmp, remove, err := inst.driver.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	root, err := inst.driver.makeRoot(filepath.Join(tmp, rootDiskFile), spec, inst.imageOf(spec))
	if err != nil {
		return err
	}
	if err := inst.placeDisk(filepath.Join(tmp, rootDiskFile)); err != nil {
		return err
	}
	inst.Root = root
	return inst.save()
}

// prepareVolumes makes the volumes that do not exist yet. One that the spec does not name
// any more stays where it is, in case the spec names it again.
func (inst *instance) prepareVolumes(spec driver.ServerSpec, files *machine.Files) ([]machine.Volume, error) {
	volumes := make([]machine.Volume, 0, len(spec.Volumes))
	for i, v := range spec.Volumes {
		if _, made := inst.Volumes[v.Name]; !made {
			if err := inst.makeVolume(i, v); err != nil {
				return nil, inst.driver.dir.Explain(err)
			}
		}
		attached, err := inst.driver.disks.Open(files, volumeField(i), inst.File(volumeFile(v.Name)), inst.Volumes[v.Name], v.ReadOnly)
		if err != nil {
			return nil, err
		}
		volumes = append(volumes, machine.Volume{Name: v.Name, Drive: *attached})
	}
	return volumes, nil
}

func volumeFile(name string) string { return "volume-" + name + ".qcow2" }

func volumeOrder(i int, v driver.Volume) disks.Order {
	return disks.Order{
		ImageField: volumeField(i), SizeField: fmt.Sprintf("volumes[%d].size (%s)", i, v.Name), Image: imageOfVolume(v), Size: v.SizeBytes,
	}
}

// makeVolume moves a volume into place before it is recorded.
func (inst *instance) makeVolume(i int, v driver.Volume) error {
	tmp, remove, err := inst.driver.dir.Temp()
	if err != nil {
		return err
	}
	defer remove()
	path := filepath.Join(tmp, volumeFile(v.Name))
	made, err := inst.driver.disks.Make(path, volumeOrder(i, v))
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
	return inst.save()
}

// placeDisk moves a new disk to where the record will name it. A disk that is there
// already was left by an interrupted call, and holds no data. If it does hold data, the
// record lost it, as one that was restored without its disks, and the disk stays.
func (inst *instance) placeDisk(made string) error {
	place := inst.File(filepath.Base(made))
	err := disks.CheckUnwritten(place)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return driver.Errorf(driver.ErrRetry, "disk %s is there, and %s does not name it: restore that file, or move the disk away: %w", place, recordFile, err)
	}
	return os.Rename(made, place)
}

func imageOfVolume(v driver.Volume) disks.ImageSettings {
	if v.Image == nil {
		return disks.ImageSettings{}
	}
	return disks.ImageSettings{Source: v.Image.Source, Checksum: v.Image.Checksum}
}

// sizesToGrow returns the disks, by QEMU's name for them, that the spec wants larger and
// that can grow as they are attached now.
func (inst *instance) sizesToGrow(spec driver.ServerSpec) map[string]int64 {
	sizes := map[string]int64{}
	if inst.Root.Size > 0 && spec.RootDiskBytes > inst.Root.Size {
		sizes[machine.RootNode] = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		writable := slices.ContainsFunc(inst.Settings.Volumes, func(a volumeSettings) bool { return a.Name == v.Name && !a.ReadOnly })
		if have := inst.Volumes[v.Name].Size; writable && v.SizeBytes > have {
			sizes[machine.VolumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// growDisks enlarges the disks of a running QEMU to what the spec says.
func (inst *instance) growDisks(ctx context.Context, spec driver.ServerSpec) error {
	sizes := inst.sizesToGrow(spec)
	if len(sizes) == 0 {
		return nil
	}
	have, err := inst.DiskSizes(ctx)
	if err != nil {
		return err
	}
	for node, size := range sizes {
		whole := diskimage.WholeSectors(size)
		if have[node] > whole { // grown before, which could not be recorded: QEMU would cut its end off
			sizes[node] = have[node]
			continue
		}
		if err := inst.ResizeDisk(ctx, node, whole); err != nil {
			return err
		}
	}
	inst.Root.Size = max(inst.Root.Size, sizes[machine.RootNode])
	inst.Volumes = maps.Clone(inst.Volumes)
	for _, v := range spec.Volumes {
		if size, grown := sizes[machine.VolumeNode(v.Name)]; grown {
			made := inst.Volumes[v.Name]
			made.Size = size
			inst.Volumes[v.Name] = made
		}
	}
	return inst.driver.dir.Explain(inst.save())
}
