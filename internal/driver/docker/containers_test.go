// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"testing"

	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/containers"
	"cloudnative.tw/drover/test/assert"
)

// TestContainers runs the cases that driver qemu runs with machines of the same images.
func TestContainers(t *testing.T) {
	t.Parallel()
	containers.Run(t, containerHarness())
}

// TestImages runs images of real programs, as TestImages of driver qemu does.
func TestImages(t *testing.T) {
	t.Parallel()
	containers.RunImages(t, containerHarness())
}

func containerHarness() containers.Harness {
	return containers.Harness{
		Open: func(t *testing.T, registry string) driver.Driver { t.Helper(); return newDriverForImages(t, registry) },
	}
}

// newDriverForImages returns a driver, and removes at the end of the test what the engine has of a registry.
func newDriverForImages(t *testing.T, registry string) *Driver {
	t.Helper()
	c := guestImages(t).client
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		images, err := c.ImageList(ctx, client.ImageListOptions{Filters: client.Filters{}.Add("reference", registry+"/*")})
		assert.NoError(t, err)
		for _, image := range images.Items {
			assert.NoError(t, assert.ErrorOf(c.ImageRemove(ctx, image.ID, client.ImageRemoveOptions{Force: true})))
		}
	})
	return newDriver(t, Options{})
}
