// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/failover/processlog"
	"cloudnative.tw/drover/test/framework/history"
)

// MachineEvidence is the evidence where servers are QEMU machines: what leaders
// wrote to the driver's journal, and what the recorder, which is no part of Drover,
// saw of their processes.
type MachineEvidence struct {
	Evidence
	Starts []processlog.ProcessStart
	// Leftovers lists the processes and files that were found at the end, after all was
	// deleted.
	Leftovers []string
}

// The rules for machines.
const (
	// RuleNoLeftovers says that nothing is left at the end.
	RuleNoLeftovers Rule = "nothing is left behind"
)

// JudgeMachines returns the rules that were broken.
func JudgeMachines(e MachineEvidence) []Violation {
	all := slices.Concat(history.EpochDecreases(e.Journal), e.checkFinalizers(), e.checkRemovals())
	starts := map[types.UID][]processlog.ProcessStart{}
	for _, b := range e.Starts {
		starts[b.UID] = append(starts[b.UID], b)
	}
	for _, uid := range slices.Sorted(maps.Keys(starts)) {
		all = append(all, processlog.CheckStarts(starts[uid])...)
	}
	for _, uid := range slices.Sorted(maps.Keys(e.Requested)) {
		all = append(all, e.checkStartCount(uid, len(starts[uid]))...)
		delete(starts, uid)
	}
	for uid := range starts {
		all = append(all, newViolation(history.RuleNothingLost, uid, "a QEMU was started for it, and no user requested it"))
	}
	for _, left := range e.Leftovers {
		all = append(all, newViolation(RuleNoLeftovers, "", left))
	}
	return all
}

// checkStartCount compares the number of starts with what a user requested.
func (e MachineEvidence) checkStartCount(uid types.UID, count int) []Violation {
	requested := e.Requested[uid]
	if count >= requested.AtLeast && count <= requested.AtMost {
		return nil
	}
	return []Violation{newViolation(RuleStartCount, uid, fmt.Sprintf("%s was started %d times: %d to %d times were requested", requested.Name, count, requested.AtLeast, requested.AtMost))}
}

// checkRemovals checks that a server is created once, and removed only after a user
// requested that.
func (e MachineEvidence) checkRemovals() []Violation {
	var broken []Violation
	for uid, entries := range history.ByServer(e.Journal) {
		requested, known := e.Requested[uid]
		if !known {
			broken = append(broken, newViolation(history.RuleNothingLost, uid, "there is an entry for it, and no user requested it"))
			continue
		}
		for n, entry := range entries {
			if entry.Action == journal.ActionCreate && n > 0 && entries[n-1].Action != journal.ActionCreate {
				broken = append(broken, newViolation(history.RuleCreatedOnce, uid, history.DescribeEntry(entry)+", though it had been created"))
			}
			if entry.Action == journal.ActionDelete && (requested.DeletedAt.IsZero() || entry.At.Before(requested.DeletedAt)) {
				broken = append(broken, newViolation(history.RuleNothingLost, uid, history.DescribeEntry(entry)+", and no user had requested that"))
			}
		}
	}
	return broken
}

// MachineHistory describes all that is known of a machine, in readable form.
func (e MachineEvidence) MachineHistory(uid types.UID) string {
	lines := []string{e.History(uid)}
	for _, b := range e.Starts {
		if b.UID == uid {
			lines = append(lines, fmt.Sprintf("QEMU %d was started at %s for run %q; beside it ran %v", b.PID, b.At.Format(time.StampMilli), b.Run, b.Others))
		}
	}
	return strings.Join(lines, "\n")
}
