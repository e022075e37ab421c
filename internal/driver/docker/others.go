// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

var _ driver.Surveyor = (*Driver)(nil)

// Others implements driver.Surveyor.
func (d *Driver) Others(ctx context.Context) (map[string]int, error) {
	ctx, cancel := d.bound(ctx)
	defer cancel()
	others := map[string]int{}
	err := d.read(ctx, "list containers of other clusters", func(ctx context.Context, c *client.Client) error {
		res, err := c.ContainerList(ctx, client.ContainerListOptions{
			All: true, Filters: client.Filters{}.Add("label", LabelCluster),
		})
		for _, s := range res.Items {
			if cluster := s.Labels[LabelCluster]; cluster != d.ClusterID {
				others[cluster]++
			}
		}
		return err
	})
	return others, err
}
