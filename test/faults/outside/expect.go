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

// restarts matches the number of restarts in a formatted status.
var restarts = regexp.MustCompile(` restarts=\d+`)

// Differences returns the differences between the state after a disturbance and the state of a run
// without it (rules.AsRequested). Only the effects on servers may differ, as far as the disturbance
// explains them.
func (d Disturbance) Differences(got, want lab.State) []string {
	all := d.comparable(got).Differences(d.comparable(want))
	names := map[string]lab.Effects{}
	maps.Copy(names, want.Effects)
	maps.Copy(names, got.Effects)
	for name := range names {
		if e := got.Effects[name]; !d.explains(e, want.Effects[name]) {
			all = append(all, fmt.Sprintf("%s, which was %s: the effects are %+v, want %+v", name, d, e, want.Effects[name]))
		}
	}
	return all
}

// MiscountedRestarts describes the VirtualMachines whose status reports another number of restarts than
// there were. A run that no status has ever reported may be missing from the number.
func MiscountedRestarts(got, want lab.State) (all []string) {
	for name, status := range got.VMs {
		counted, runs := countRestarts(status)-countRestarts(want.VMs[name]), got.Effects[name].Runs-want.Effects[name].Runs
		if counted > runs || counted < runs-got.Unreported[name] {
			all = append(all, fmt.Sprintf("%s was started %d more times than in the run without faults, but its status reports %d more restarts", name, runs, counted))
		}
	}
	return all
}

func countRestarts(status string) (count int) {
	_, _ = fmt.Sscanf(restarts.FindString(status), " restarts=%d", &count)
	return count
}

// explains reports whether a disturbance explains the difference between got and want.
//
//   - A removed server is created again or, if it is no longer wanted, need not be deleted or
//     released any more. It is started as often as without the disturbance, or once more.
//   - A server that has ended is started as often as without the disturbance, or once more.
//   - A supervisor that has ended or is halted is replaced, without an effect on its server. The
//     supervisor in a pod is not replaced: it continues, or ends with the pod.
//   - After a backup was restored, changes since the backup are made once more, unless restoring
//     had the same effect: for example, a server that was stopped for a restart runs again.
//   - Other disturbances have no effect.
func (d Disturbance) explains(got, want lab.Effects) bool {
	runs := got.Runs - want.Runs
	got.Runs = want.Runs
	switch d {
	case Removed:
		creates, deletes, releases := got.Creates-want.Creates, want.Deletes-got.Deletes, want.Releases-got.Releases
		return isZeroOrOne(creates) && isZeroOrOne(runs) && isZeroOrOne(deletes) && isZeroOrOne(releases) && deletes+releases == 1-creates
	case Stopped, Killed, Suspended, BothKilled, ContainerKilled:
		return isZeroOrOne(runs) && got == want
	case Restored:
		creates, deletes := got.Creates-want.Creates, got.Deletes+got.Releases-want.Deletes-want.Releases
		return isZeroOrOne(creates) && isZeroOrOne(deletes) && runs >= -1 && runs <= 1
	default:
		return runs == 0 && got == want
	}
}

// sparesServers reports whether all servers keep running, for example because only a supervisor is disturbed.
func (d Disturbance) sparesServers() bool {
	return d == SupervisorKilled || d == SupervisorSuspended || d == SupervisorHalted || d == Halted
}

// isZeroOrOne reports whether something was done as often as wanted, or once more.
func isZeroOrOne(difference int) bool { return difference == 0 || difference == 1 }

// released matches a released server. If a disturbance changes the state or the configuration of a
// released server, Drover does not change them back.
var released = regexp.MustCompile(`^(\S+) \S* released=true .*`)

// comparable returns a state without the parts that a disturbance may change.
func (d Disturbance) comparable(s lab.State) lab.State {
	if d.sparesServers() {
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
