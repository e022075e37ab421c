// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package tier

import (
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestFull(t *testing.T) {
	for _, full := range []bool{false, true} {
		t.Setenv(Env, map[bool]string{true: "full"}[full])
		var skipped bool
		t.Run("test", func(t *testing.T) {
			t.Cleanup(func() { skipped = t.Skipped() })
			Full(t, "an example; the gate keeps this test itself")
		})
		assert.True(t, skipped != full, "with %s=%v the test was skipped: %v", Env, full, skipped)
	}
}
