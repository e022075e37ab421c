// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestReceivers counts the methods of testdata/receivers, whose types embed those of package lent
// and of a package of Go.
func TestReceivers(t *testing.T) {
	found, err := countMethods("testdata/receivers", []string{"internal/lent", "internal/types"})
	assert.NoError(t, err)
	for name, want := range map[string]int{"lent Methods": 21, "lent Reader": 1, "types Small": 30, "types Large": 31} {
		assert.Equal(t, "the methods of "+name, found["internal/"+name], want)
	}
	var out strings.Builder
	assert.ErrorSays(t, "with a large type", checkMethods(&out, found), "1 types have too many methods")
	assert.Equal(t, "it prints", out.String(), "internal/types Large has 31 methods, those of embedded types included, at most 30 are allowed\n")
	delete(found, "internal/types Large")
	assert.NoError(t, checkMethods(&out, found))
}
