// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"os"
	"strings"
	"testing"
)

// TestSentences checks that docs/faults.md has the same rules.
func TestSentences(t *testing.T) {
	t.Parallel()
	docs, err := os.ReadFile("../../../docs/faults.md")
	if err != nil {
		t.Fatal(err)
	}
	for rule, sentence := range Sentences {
		if row := "| " + string(rule) + " | " + sentence + " |\n"; !strings.Contains(string(docs), row) {
			t.Errorf("docs/faults.md lacks the row %q", row)
		}
	}
}
