// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"encoding/json"
	"fmt"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestBalloonStats(t *testing.T) {
	t.Parallel()
	const none = "18446744073709551615"
	for name, c := range map[string]struct {
		total, free, available string
		updated                int
		used                   int64
		ok                     bool
	}{
		"all":       {"1000", "100", "400", 1, 600, true},
		"old Linux": {"1000", "100", none, 1, 900, true},
		"never":     {none, none, none, 0, 0, false},
		"no total":  {none, "100", "400", 1, 0, false},
		"no rest":   {"1000", none, none, 1, 0, false},
		"nonsense":  {"1000", "100", "1001", 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stats balloonStats
			assert.NoError(t, json.Unmarshal(fmt.Appendf(nil,
				`{"last-update": %d, "stats": {"stat-total-memory": %s, "stat-free-memory": %s, "stat-available-memory": %s, "stat-swap-in": 0}}`,
				c.updated, c.total, c.free, c.available), &stats))
			if used, ok := stats.usedMemory(); used != c.used || ok != c.ok {
				t.Errorf("used are %d, %v; want %d, %v", used, ok, c.used, c.ok)
			}
		})
	}
}
