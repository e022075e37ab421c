// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"cloudnative.tw/drover/internal/driver"
)

// Others tells, one line each, of the servers of other Drover installations
// that the opened drivers see. They are left alone.
func Others(ctx context.Context, opened []Opened) []string {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var lines []string
	for _, d := range opened {
		surveyor, ok := driver.As[driver.Surveyor](d.Driver)
		if !ok {
			continue
		}
		others, err := surveyor.Others(ctx)
		if err != nil {
			continue // the inventory tells of an engine that does not answer
		}
		for _, cluster := range slices.Sorted(maps.Keys(others)) {
			lines = append(lines, fmt.Sprintf("driver %s: servers of another Drover installation (cluster %s): %d, left alone", d.Name, cluster, others[cluster]))
		}
	}
	return lines
}
