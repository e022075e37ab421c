// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"fmt"
	"slices"

	"cloudnative.tw/drover/test/faults/lab"
)

// minRests is how often a process must have been at rest to show what it leaks.
const minRests = 8

// historyFull is after how many lifecycles a leader has as many decisions in memory as it ever
// will. Until then its heap grows with each.
const historyFull = 1000

// limits say by how much what a process needs late may exceed what it needed early, by a
// share of it and by a number, and how many lifecycles are left out before. What is not listed
// is only drawn.
var limits = map[string]struct {
	share, number float64
	skip          int
}{
	// Garbage was collected, so this counts reachable memory only.
	"heap": {0.10, 256 << 10, historyFull},
	// This depends on when garbage was collected before.
	"resident":    {0.25, 0, historyFull},
	"goroutines":  {0, 5, 0},
	"descriptors": {0, 5, 0},
}

// checkFlat compares what each process that was at rest often enough needed early and late,
// always at rest. It leaves out the first quarter of its life, in which caches fill; early
// is the least of the second quarter, and late that of the last. A leak raises the least, and
// a connection that happens to be open does not.
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
				broken = append(broken, lab.Violation{Rule: "O13", Text: "a process needs more and more: " + text})
			}
		}
	}
	return broken, notes
}

// least returns the least of one need.
func least(all []sample, need int) float64 {
	lowest := all[0].needs[need]
	for _, s := range all {
		lowest = min(lowest, s.needs[need])
	}
	return lowest
}
