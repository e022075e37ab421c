// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"testing"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/faults/lab"
)

// TestDifferences checks that effects that the disturbance does not explain are found, also missing
// effects, and effects on an unexpected VM.
func TestDifferences(t *testing.T) {
	want := lab.State{Effects: map[string]lab.Effects{"vm-1": {Creates: 1, Runs: 1}}}
	for name, test := range map[string]struct {
		d     Disturbance
		got   map[string]lab.Effects
		count int
	}{
		"as without":         {Killed, want.Effects, 0},
		"started once more":  {Killed, map[string]lab.Effects{"vm-1": {Creates: 1, Runs: 2}}, 0},
		"started twice more": {Killed, map[string]lab.Effects{"vm-1": {Creates: 1, Runs: 3}}, 1},
		"created again":      {Removed, map[string]lab.Effects{"vm-1": {Creates: 2, Runs: 2}}, 0},
		"not followed":       {SupervisorKilled, want.Effects, 0},
		"its end followed":   {SupervisorKilled, map[string]lab.Effects{"vm-1": {Creates: 1, Runs: 2}}, 1},
		"nothing was done":   {Removed, map[string]lab.Effects{}, 1},
		"a name too many":    {Paused, map[string]lab.Effects{"vm-1": {Creates: 1, Runs: 1}, "vm-2": {Creates: 1}}, 1},
	} {
		got := test.d.Differences(lab.State{Effects: test.got}, want)
		assert.True(t, len(got) == test.count, "%s: the differences are %q, want %d", name, got, test.count)
	}
	got := Paused.Differences(want, lab.State{})
	assert.True(t, len(got) == 1, "without wanted effects the differences are %q, want one", got)
}
