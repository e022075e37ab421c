// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"encoding/json"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestFractionOfACPU checks that a manifest has a fraction as the API server takes it, which refuses the number
// 1.5.
func TestFractionOfACPU(t *testing.T) {
	size, err := (&Flags{CPU: "1.5", Memory: "1.5G"}).ParseSize()
	assert.NoError(t, err)
	text, err := json.Marshal(size)
	want := `{"cpu":"1500m","memory":"1500M"}`
	assert.True(t, err == nil && string(text) == want, "got %s, %v, want %s", text, err, want)
}
