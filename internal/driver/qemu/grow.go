// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"maps"
	"slices"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/image/diskimage"
)

// outgrown returns the disks, by QEMU's name for them, that the spec wants larger and
// that can grow as they are attached now.
func (s *server) outgrown(spec driver.ServerSpec) map[string]int64 {
	sizes := map[string]int64{}
	if s.Root.Size > 0 && spec.RootDiskBytes > s.Root.Size {
		sizes[rootNode] = spec.RootDiskBytes
	}
	for _, v := range spec.Volumes {
		writable := slices.ContainsFunc(s.Settings.Volumes, func(a volumeSettings) bool { return a.Name == v.Name && !a.ReadOnly })
		if have := s.Volumes[v.Name].Size; writable && v.SizeBytes > have {
			sizes[volumeNode(v.Name)] = v.SizeBytes
		}
	}
	return sizes
}

// grow enlarges the disks of a running QEMU to what the spec says.
func (d *Driver) grow(ctx context.Context, s *server, spec driver.ServerSpec) error {
	sizes := s.outgrown(spec)
	if len(sizes) == 0 {
		return nil
	}
	have, err := s.sizesNow(ctx)
	if err != nil {
		return err
	}
	for node, size := range sizes {
		whole := diskimage.WholeSectors(size)
		if have[node] > whole { // grown before, which could not be recorded: QEMU would cut its end off
			sizes[node] = have[node]
			continue
		}
		if err := s.command(ctx, "block_resize", object{"node-name": node, "size": whole}, nil); err != nil {
			return err
		}
	}
	s.Root.Size = max(s.Root.Size, sizes[rootNode])
	s.Volumes = maps.Clone(s.Volumes)
	for _, v := range spec.Volumes {
		if size, grown := sizes[volumeNode(v.Name)]; grown {
			made := s.Volumes[v.Name]
			made.Size = size
			s.Volumes[v.Name] = made
		}
	}
	return d.dir.Explain(s.save(s.record))
}

// sizesNow returns the sizes of disks as QEMU has them, by its name for them.
func (s *server) sizesNow(ctx context.Context) (map[string]int64, error) {
	var nodes []struct {
		Name  string `json:"node-name"`
		Image struct {
			Size int64 `json:"virtual-size"`
		} `json:"image"`
	}
	if err := s.command(ctx, "query-named-block-nodes", object{"flat": true}, &nodes); err != nil {
		return nil, err
	}
	sizes := map[string]int64{}
	for _, n := range nodes {
		sizes[n.Name] = n.Image.Size
	}
	return sizes, nil
}
