// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package outside

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"cloudnative.tw/drover/test/faults/lab"
)

// restarts is the count in a status, which shows how a server ended.
var restarts = regexp.MustCompile(` restarts=\d+`)

// Differences returns the differences between the state after a disturbance and the state to
// which Drover should bring it (O7). Once the disturbance is over, everything but the effects
// on servers must be as without it.
func (d Disturbance) Differences(got, want lab.State) []string {
	all := d.comparable(got).Differences(d.comparable(want))
	names := maps.Clone(want.Effects)
	maps.Copy(names, got.Effects)
	for name := range names {
		if e := got.Effects[name]; !d.explains(e, want.Effects[name]) {
			all = append(all, fmt.Sprintf("%s had %+v after it was %s, and %+v if it is not", name, e, d, want.Effects[name]))
		}
	}
	return all
}

// UncountedEnds returns which VirtualMachines were started again more often, or less, than their statuses count, as if an
// end had been lost or invented. The end of a run that no status had named yet need not be counted.
func UncountedEnds(got, want lab.State) (all []string) {
	for name, status := range got.VMs {
		counted, runs := countRestarts(status)-countRestarts(want.VMs[name]), got.Effects[name].Runs-want.Effects[name].Runs
		if counted > runs || counted < runs-got.Unreported[name] {
			all = append(all, fmt.Sprintf("%s was started %d times more than without a fault, and counts %d", name, runs, counted))
		}
	}
	return all
}

func countRestarts(status string) (count int) {
	_, _ = fmt.Sscanf(restarts.FindString(status), " restarts=%d", &count)
	return count
}

// explains reports whether a disturbance explains other effects.
//
//   - A server that was removed is created again, unless it is no longer wanted, and then there
//     is nothing to delete or to release. It is started as often as it was, or once more.
//   - A server that has ended is started as often as it was, or once more.
//   - A supervisor that has ended or is halted is replaced, which has no effect on its server. One in a pod goes on, or
//     ends with the pod.
//   - What was done since a backup is done once more after the backup was restored, or was
//     undone by that: a server that was stopped to be started again runs.
//   - Nothing else has an effect.
func (d Disturbance) explains(got, want lab.Effects) bool {
	runs := got.Runs - want.Runs
	got.Runs = want.Runs
	switch d {
	case Removed:
		again, deletes, releases := got.Creates-want.Creates, want.Deletes-got.Deletes, want.Releases-got.Releases
		return isOnce(again) && isOnce(runs) && isOnce(deletes) && isOnce(releases) && deletes+releases == 1-again
	case Stopped, Killed, Suspended, BothKilled, ContainerKilled:
		return isOnce(runs) && got == want
	case Restored:
		again, undone := got.Creates-want.Creates, got.Deletes+got.Releases-want.Deletes-want.Releases
		return isOnce(again) && isOnce(undone) && runs >= -1 && runs <= 1
	default:
		return runs == 0 && got == want
	}
}

// endsNothing reports whether no server ends by a disturbance, such as one of a supervisor alone.
func (d Disturbance) endsNothing() bool {
	return d == SupervisorKilled || d == SupervisorSuspended || d == SupervisorHalted || d == Halted
}

// isOnce reports whether there is no difference, or one because something was done once more.
func isOnce(difference int) bool { return difference == 0 || difference == 1 }

// released matches a server that was released, whose state and configuration stay as others
// than Drover have left them.
var released = regexp.MustCompile(`^(\S+) \S* released=true .*`)

// comparable returns a state without what a disturbance may change in it.
func (d Disturbance) comparable(s lab.State) lab.State {
	if d.endsNothing() {
		s.Effects = nil
		return s
	}
	s.Servers = slices.Clone(s.Servers)
	for n, server := range s.Servers {
		s.Servers[n] = released.ReplaceAllString(server, "$1 was released")
	}
	if d == Removed {
		s.Servers = slices.DeleteFunc(s.Servers, func(server string) bool { return strings.HasSuffix(server, " was released") })
	}
	s.Effects, s.VMs = nil, maps.Clone(s.VMs)
	for name, status := range s.VMs {
		s.VMs[name] = restarts.ReplaceAllString(status, "")
	}
	return s
}
