// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestLeasedPortsDiffer checks that no port is leased twice, even while no process listens on it.
func TestLeasedPortsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[int32]bool{}
	for range 200 {
		port := FreePort(t)
		assert.Require(t, !seen[port], "port %d is leased twice", port)
		seen[port] = true
	}
}
