// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"fmt"
	"maps"
	"regexp"

	"cloudnative.tw/drover/test/faults/lab"
)

// restarts is the count in a status, which shows how a server ended.
var restarts = regexp.MustCompile(` restarts=\d+`)

// Differences returns in what the state after a disturbance differs from what Drover should
// make of it (O7). All but the effects on servers must be as without the disturbance, once
// it is over.
func (d Disturbance) Differences(got, want lab.State) []string {
	all := withoutCounts(got).Differences(withoutCounts(want))
	for name, e := range got.Effects {
		if !d.explains(e, want.Effects[name]) {
			all = append(all, fmt.Sprintf("%s had %+v after it was %s, and %+v if it is not", name, e, d, want.Effects[name]))
		}
	}
	return all
}

// explains reports whether a disturbance explains other effects.
//
//   - A server that was removed is created again, unless it is wanted no more, and then there
//     is nothing to delete. It is started as often as it was, or once more.
//   - A server that has ended is started as often as it was, or once more.
//   - Nothing else has an effect.
func (d Disturbance) explains(got, want lab.Effects) bool {
	runs := got.Runs - want.Runs
	got.Runs = want.Runs
	switch d {
	case Removed:
		again := got.Creates - want.Creates
		want.Creates, want.Deletes = want.Creates+again, want.Deletes+again-1
		return (again == 0 || again == 1) && (runs == 0 || runs == 1) && got == want
	case Stopped, Killed, Suspended:
		return (runs == 0 || runs == 1) && got == want
	case Paused, Resized, Renamed, Away, Exchanged, ClockAhead, ClockBehind:
	}
	return runs == 0 && got == want
}

func withoutCounts(s lab.State) lab.State {
	s.Effects, s.VMs = nil, maps.Clone(s.VMs)
	for name, status := range s.VMs {
		s.VMs[name] = restarts.ReplaceAllString(status, "")
	}
	return s
}
