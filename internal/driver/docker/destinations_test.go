// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/destinations"
)

// TestDestinations tries the ways out of a container, and in, which the engine alone decides.
func TestDestinations(t *testing.T) {
	t.Parallel()
	destinations.Run(t, destinations.Harness{
		Open: func(t *testing.T, registry string, _ destinations.Egress) driver.Driver {
			t.Helper()
			return newDriverForImages(t, registry)
		},
	})
}
