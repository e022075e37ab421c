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

// outgrown returns the disks, by QEMU's name for them, that the spec wants larger and
// that can grow as they are attached now.
func (s *instance) outgrown(spec driver.ServerSpec) map[string]int64 {
	sizes := map[string]int64{}
	if s.Root.Size > 0 && spec.RootDiskBytes > s.Root.Size {
		sizes[machine.RootNode] = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		writable := slices.ContainsFunc(s.Settings.Volumes, func(a volumeSettings) bool { return a.Name == v.Name && !a.ReadOnly })
		if have := s.Volumes[v.Name].Size; writable && v.SizeBytes > have {
			sizes[machine.VolumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// grow enlarges the disks of a running QEMU to what the spec says.
func (d *Driver) grow(ctx context.Context, s *instance, spec driver.ServerSpec) error {
	sizes := s.outgrown(spec)
	if len(sizes) == 0 {
		return nil
	}
	have, err := s.DiskSizes(ctx)
	if err != nil {
		return err
	}
	for node, size := range sizes {
		whole := diskimage.WholeSectors(size)
		if have[node] > whole { // grown before, which could not be recorded: QEMU would cut its end off
			sizes[node] = have[node]
			continue
		}
		if err := s.ResizeDisk(ctx, node, whole); err != nil {
			return err
		}
	}
	s.Root.Size = max(s.Root.Size, sizes[machine.RootNode])
	s.Volumes = maps.Clone(s.Volumes)
	for _, v := range spec.Volumes {
		if size, grown := sizes[machine.VolumeNode(v.Name)]; grown {
			made := s.Volumes[v.Name]
			made.Size = size
			s.Volumes[v.Name] = made
		}
	}
	return d.dir.Explain(s.save())
}
