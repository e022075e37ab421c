// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

// TestSentences checks that docs/faults.md has the same rules.
func TestSentences(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../../docs/faults.md")
	assert.NoError(t, err)
	for rule, sentence := range Sentences {
		row := "| " + string(rule) + " | " + sentence + " |\n"
		assert.True(t, strings.Contains(string(docs), row), "docs/faults.md lacks the row %q", row)
	}
}
