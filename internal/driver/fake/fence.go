// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unfenced

package fake

import "cloudnative.tw/drover/internal/driver"

// against compares the claim with the cluster's highest epoch so far.
func (c claim) against(highest uint64) error {
	if c.epoch == 0 || c.epoch >= highest {
		return nil
	}
	return driver.Errorf(driver.ErrFenced, "epoch %d has acted on the engine, and this call's is %d: a newer leader has taken over", highest, c.epoch)
}
