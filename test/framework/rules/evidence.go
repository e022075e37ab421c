// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver/journal"
)

// Requested holds the requests of users for one VirtualMachine.
type Requested struct {
	Name string
	// DeletedAt is when its deletion was requested, or zero.
	DeletedAt time.Time
	// AtLeast and AtMost are how often its server may have been started. They differ
	// where users did not wait for one request to complete before the next.
	AtLeast, AtMost int
	// Log are the requests, for finding the cause of a violation.
	Log []string
}

// CheckStarts checks that a server was started as often as users requested.
func (r Requested) CheckStarts(uid types.UID, starts int) []Violation {
	if starts >= r.AtLeast && starts <= r.AtMost {
		return nil
	}
	return []Violation{{Rule: AsRequested, UID: uid, Text: fmt.Sprintf("%s was started %d times: %d to %d times were requested", r.Name, starts, r.AtLeast, r.AtMost)}}
}

// Evidence is the input of Judge: the requests of users, the last of which are complete, and the outcome.
type Evidence struct {
	// Journal has the entries of the engine's journal, in its order.
	Journal []journal.Entry
	// Processes are all processes of replicas that ever ran.
	Processes []Process
	// Starts are the starts of servers' processes that another recorder than the engine observed. Then Journal is empty.
	Starts []Start
	// Requested has the requests of users for all VirtualMachines that ever existed.
	Requested map[types.UID]Requested
	// VMs and Servers are those that exist at the end.
	VMs     map[types.UID]*api.VirtualMachine
	Servers []Server
	// Leftovers are other objects that were found at the end and should be gone.
	Leftovers []string
}

// Judge returns the rules that were broken.
func Judge(e Evidence) (broken []Violation) {
	starts := map[types.UID]int{}
	for _, h := range Trace(e.Journal, e.Servers, e.Processes) {
		starts[h.UID] = h.CountRuns()
		broken = slices.Concat(broken, h.Violations, e.checkRemovals(h))
	}
	for uid, all := range StartsByUID(e.Starts) {
		starts[uid] = len(all)
		broken = append(broken, CheckProcesses(all)...)
	}
	for uid := range starts {
		if _, known := e.Requested[uid]; !known {
			broken = append(broken, Violation{Rule: AsRequested, UID: uid, Text: "it has a server, and no user requested it"})
		}
	}
	for uid, requested := range e.Requested {
		broken = append(broken, requested.CheckStarts(uid, starts[uid])...)
	}
	for _, left := range e.Leftovers {
		broken = append(broken, Broken(NoOrphans, "%s is left", left))
	}
	return append(broken, e.checkEnd()...)
}

// checkRemovals checks that a server was removed only after a user had requested its deletion.
func (e Evidence) checkRemovals(h History) (broken []Violation) {
	deletedAt := e.Requested[h.UID].DeletedAt
	for _, entry := range h.Applied {
		if entry.After == nil && (deletedAt.IsZero() || entry.At.Before(deletedAt)) {
			broken = append(broken, Violation{Rule: AsRequested, UID: h.UID, Text: DescribeEntry(entry) + ", and no user had requested its deletion"})
		}
	}
	return broken
}

// checkEnd checks that every VirtualMachine that users did not delete has its server in the requested state, and that
// nothing is left of the deleted ones.
func (e Evidence) checkEnd() []Violation {
	broken := CheckServers(slices.Collect(maps.Values(e.VMs)), e.Servers)
	servers := ByUID(e.Servers)
	for uid, requested := range e.Requested {
		vm := e.VMs[uid]
		switch {
		case !requested.DeletedAt.IsZero() && vm != nil:
			broken = append(broken, Violation{Rule: DeletionEnds, UID: uid, Text: requested.Name + " was deleted and still exists"})
		case requested.DeletedAt.IsZero() && vm == nil:
			broken = append(broken, Violation{Rule: AsRequested, UID: uid, Text: requested.Name + " is gone, and no user had requested its deletion"})
		case vm != nil:
			if err := CheckApplied(vm, firstOf(servers[uid])); err != nil {
				broken = append(broken, Violation{Rule: ServerPresent, UID: uid, Text: fmt.Sprintf("%s: %v", requested.Name, err)})
			}
		}
	}
	return broken
}

func firstOf(servers []Server) *Server {
	if len(servers) == 0 {
		return nil
	}
	return &servers[0]
}
