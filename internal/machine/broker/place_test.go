// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"testing"

	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// TestRemoveWithoutTime checks that a broker is not taken for one that does not answer by a caller who has ended before
// it asked.
func TestRemoveWithoutTime(t *testing.T) {
	t.Parallel()
	p := Place{Machine: machine.Machine{Path: t.TempDir(), UUID: "broker"}}
	lock, err := p.TryLock(lockFile)
	assert.NoError(t, err)
	defer func() { _ = lock.Close() }()
	ended, end := context.WithCancel(t.Context())
	end()
	assert.ErrorIs(t, "a caller that has ended", p.Remove(ended, "1"), context.Canceled)
}
