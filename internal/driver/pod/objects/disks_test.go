// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"testing"

	"cloudnative.tw/drover/internal/driver"
)

// TestFit checks that the volume of a disk has room for it, and that a smaller volume has room for
// what fit returns.
func TestFit(t *testing.T) {
	t.Parallel()
	for _, bytes := range []int64{1 << 20, 10 << 30, 1<<50 - 512} {
		claim := (&Template{}).NewClaim(driver.ServerSpec{}, Disk{Bytes: bytes}, "")
		if got := Fit(bytes, claim); got != bytes {
			t.Errorf("a disk of %d has %d in its own volume", bytes, got)
		}
		less := Fit(2*bytes, claim)
		if size := ClaimSize(max(less, 1)); less > bytes || less < bytes-bytes/100-64 || size.Value() > RoomOf(claim) {
			t.Errorf("in the volume of a disk of %d, one of %d has %d", bytes, 2*bytes, less)
		}
	}
}
