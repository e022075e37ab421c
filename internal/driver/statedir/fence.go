// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !unfenced

package statedir

import "cloudnative.tw/drover/internal/driver"

// CompareEpochs returns ErrFenced for an epoch below the highest epoch that has acted. Epoch 0
// belongs to no leader and is not compared.
func CompareEpochs(epoch, highest uint64) error {
	if epoch == 0 || epoch >= highest {
		return nil
	}
	return driver.Errorf(driver.ErrFenced, "a leader with epoch %d has acted on the engine, and the epoch of this call is %d: a newer leader has taken over", highest, epoch)
}
