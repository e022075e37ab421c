// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/drivertest/destinations"
	"cloudnative.tw/drover/test/framework"
)

// TestDestinations tries every way out of a machine, and in.
func TestDestinations(t *testing.T) {
	t.Parallel()
	destinations.Run(t, destinations.Harness{
		Open: func(t *testing.T, registry string, egress destinations.Egress) driver.Driver {
			t.Helper()
			o := newEngine(t).options()
			o.Fetch.PlainHTTP, o.UncheckedImages, o.GuestKernel = []string{registry}, true, framework.GuestKernel(t)
			o.EgressDenied = egress.Denied
			if egress.Deny {
				o.Egress = EgressDeny
			}
			return openWith(t, o)
		},
		IsMachine: true,
	})
}
