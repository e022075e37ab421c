// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package fake

import (
	"context"

	"cloudnative.tw/drover/internal/driver"
)

var _ driver.Surveyor = (*Driver)(nil)

// Others implements driver.Surveyor.
func (d *Driver) Others(ctx context.Context) (map[string]int, error) {
	if err := d.enter(ctx); err != nil {
		return nil, err
	}
	records, err := d.store.list(ctx)
	if err != nil {
		return nil, err
	}
	others := map[string]int{}
	for _, r := range records {
		if r.ClusterID != d.clusterID {
			others[r.ClusterID]++
		}
	}
	return others, nil
}
