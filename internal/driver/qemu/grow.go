// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"maps"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/qemu/diskimage"
	"cloudnative.tw/drover/internal/machine"
)

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
