// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package decisions

import (
	"strings"
	"testing"
)

// TestReadIsBounded reads files with more decisions than there is memory for.
func TestReadIsBounded(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"lines":    strings.Repeat("{\"input\":{}}\n", 4),
		"history":  `{"replicas":[{"decisions":[{},{},{},{}]}]}`,
		"replicas": `{"replicas":[{"decisions":[{},{}]},{},{"decisions":null},{"decisions":[{},{}]}]}`,
	} {
		if f, err := readAtMost(4, strings.NewReader(text)); err != nil || len(f.Records) != 4 {
			t.Errorf("%s: %d decisions, %v", name, len(f.Records), err)
		}
		f, err := readAtMost(3, strings.NewReader(text))
		if err == nil || !strings.Contains(err.Error(), "more than 3 decisions") || len(f.Records) != 3 {
			t.Errorf("%s: %d decisions, %v", name, len(f.Records), err)
		}
	}
	if _, err := Read(strings.NewReader(`{"replicas":[{"decisions":7}]}`)); err == nil {
		t.Error("a number is read as decisions")
	}
}
