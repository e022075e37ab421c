// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestStoreQuota(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]int64{"32Mi": 32 << 20, "1500M": 1_500_000_000, "8Gi": 8 << 30} {
		got, err := (&UpOptions{storeQuota: given}).StoreQuota()
		assert.True(t, err == nil && got == want, "%s: %d, %v", given, got, err)
	}
	for _, given := range []string{"many", "31Mi", "9Gi", "-1"} {
		assert.ErrorSays(t, given, assert.ErrorOf((&UpOptions{storeQuota: given}).StoreQuota()), "from 32Mi to 8Gi")
	}
	for memory, want := range map[int64]int64{1 << 30: 64 << 20, 8 << 30: 256 << 20, 1 << 40: 1 << 30} {
		got := defaultStoreQuota(memory)
		assert.True(t, got == want, "a host with %d bytes: %d", memory, got)
	}
}
