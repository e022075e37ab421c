// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package volumes has the volumes of a server's spec as named volumes of Docker, which outlast the server's container.
// Start with MountsOf.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/docker/engine"
	"cloudnative.tw/drover/internal/guest/config"
)

// Check rejects volumes that no container can have.
func Check(spec driver.ServerSpec) error {
	for i, v := range spec.Volumes {
		if v.MountPath == "" {
			return driver.Errorf(driver.ErrUnsupported, "spec.volumes[%d].mountPath is missing: the docker driver offers volumes only as folders; set mountPath, use driver qemu or leave the volume out", i)
		}
		if err := config.CheckMountPath(v.MountPath); err != nil {
			return driver.Errorf(driver.ErrInvalid, "spec.volumes[%d].mountPath %w", i, err)
		}
	}
	return nil
}

// Text returns one text for the volumes of a spec, so that they can be compared.
func Text(spec driver.ServerSpec) string {
	texts := make([]string, 0, len(spec.Volumes))
	for _, v := range spec.Volumes {
		texts = append(texts, fmt.Sprintf("%s:%q:%t", v.Name, v.MountPath, v.ReadOnly))
	}
	return strings.Join(texts, ",")
}

// MountsOf returns the mounts of a spec's volumes. The engine makes missing volumes, with the labels, and copies into an
// empty one what the image has at its path.
func MountsOf(spec driver.ServerSpec, labels map[string]string) []mount.Mount {
	var all []mount.Mount
	for _, v := range spec.Volumes {
		all = append(all, mount.Mount{
			Type: mount.TypeVolume, Source: "drover-" + string(spec.UID) + "-" + v.Name, Target: v.MountPath, ReadOnly: v.ReadOnly,
			VolumeOptions: &mount.VolumeOptions{Labels: labels},
		})
	}
	return all
}

// Remove removes the volumes that have all labels and that no container has.
func Remove(ctx context.Context, e *engine.Client, uid types.UID, labels ...string) error {
	filters := client.Filters{}
	for _, l := range labels {
		filters.Add("label", l)
	}
	var names []string
	err := e.Read(ctx, "list volumes", func(ctx context.Context, c *client.Client) error {
		res, err := c.VolumeList(ctx, client.VolumeListOptions{Filters: filters})
		for _, v := range res.Items {
			names = append(names, v.Name)
		}
		return err
	})
	for _, name := range names {
		removal := e.Change(ctx, "remove volume "+name, func(ctx context.Context, c *client.Client) error {
			_, err := c.VolumeRemove(ctx, name, client.VolumeRemoveOptions{})
			return err
		})
		if !errdefs.IsNotFound(removal) && !errdefs.IsConflict(removal) {
			err = errors.Join(err, removal)
		}
	}
	if err != nil {
		return driver.Errorf(driver.ErrRetry, "the volumes of UID %s: %w", uid, err)
	}
	return nil
}
