// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import "slices"

// MountPaths returns the folders of mounts, sorted.
func MountPaths(mounts []FileMount) []string {
	var paths []string
	for _, m := range mounts {
		paths = append(paths, m.MountPath)
	}
	slices.Sort(paths)
	return paths
}
