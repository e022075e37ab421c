// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"slices"

	"cloudnative.tw/drover/test/faults/lab"
	"cloudnative.tw/drover/test/framework/rules"
)

// minRests is how many samples of a process are needed to show a leak.
const minRests = 8

// historyFull is the number of lifecycles after which a leader's history of decisions is full.
// Until then its heap grows with each lifecycle.
const historyFull = 1000

// limits say how much a process may need late in its life: what it needed early, plus a share
// of this, plus a number. Both are measured after the first skip lifecycles. Fields without
// limits are not checked.
var limits = map[string]struct {
	share, number float64
	skip          int
}{
	// Garbage was just collected, so this is only reachable memory.
	"heap": {0.10, 256 << 10, historyFull},
	// This depends on earlier garbage collections.
	"resident":    {0.25, 0, historyFull},
	"goroutines":  {0, 5, 0},
	"descriptors": {0, 5, 0},
}

// checkFlat compares what each process needed early and late in its life, by samples at rest. It
// ignores the first quarter, in which caches fill. Early is the minimum of the second quarter,
// and late that of the last: a leak raises the minimum, but a connection that happens to be open
// does not. Processes with too few samples are ignored.
func checkFlat(all []sample) (broken []lab.Violation, notes []string) {
	byPID := map[int][]sample{}
	for _, s := range all {
		byPID[s.pid] = append(byPID[s.pid], s)
	}
	for pid, all := range byPID {
		for i, f := range fields {
			limit, ok := limits[f.name]
			life := slices.DeleteFunc(slices.Clone(all), func(s sample) bool { return s.done < all[0].done+limit.skip })
			n := len(life)
			if !ok || n < minRests {
				continue
			}
			early, late := least(life[n/4:n/2], i), least(life[n-n/4:], i)
			text := fmt.Sprintf("%s of %s, process %d, after %d to %d lifecycles %.0f, after %d to %d %.0f", f.name, life[0].replica, pid,
				life[n/4].done, life[n/2-1].done, early, life[n-n/4].done, life[n-1].done, late)
			notes = append(notes, text)
			if late > early*(1+limit.share)+limit.number {
				broken = append(broken, lab.Violation{Rule: rules.NoGrowth, Text: "a process needs more and more: " + text})
			}
		}
	}
	return broken, notes
}

// least returns the minimum of a field.
func least(all []sample, need int) float64 {
	lowest := all[0].needs[need]
	for _, s := range all {
		lowest = min(lowest, s.needs[need])
	}
	return lowest
}
