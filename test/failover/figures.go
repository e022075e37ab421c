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
	"cloudnative.tw/drover/test/framework/rules"
)

// Evidence is the outcome of a run.
type Evidence struct {
	rules.Evidence

	Faults []Fault
}

// Summary describes a run in a few lines.
func (e Evidence) Summary() string {
	faults, changes := map[Kind]int{}, map[journal.Action]int{}
	epochs, actors := map[uint64]bool{}, map[int]bool{}
	deleted := 0
	for _, f := range e.Faults {
		faults[f.Kind]++
	}
	for _, entry := range e.Journal {
		changes[entry.Action]++
		if entry.Action != journal.ActionRefused {
			epochs[entry.Epoch], actors[entry.PID] = true, true
		}
	}
	for _, requested := range e.Requested {
		if !requested.DeletedAt.IsZero() {
			deleted++
		}
	}
	return fmt.Sprintf("faults %s\n%d processes and %d epochs changed something\nVMs %d, %d of them deleted\nchanges %s",
		formatCounts(faults), len(actors), len(epochs), len(e.Requested), deleted, formatCounts(changes))
}

// History describes everything that is known about a server, in readable form.
func (e Evidence) History(uid types.UID) string {
	requested := e.Requested[uid]
	lines := []string{fmt.Sprintf("requested: %s, deleted at %s, started %d to %d times", requested.Name, requested.DeletedAt.UTC().Format(time.StampMilli), requested.AtLeast, requested.AtMost)}
	lines = append(lines, requested.Log...)
	pids := map[int]bool{0: true}
	for _, entry := range e.Journal {
		if entry.UID != uid {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s (%s): from %s to %s", rules.DescribeEntry(entry), rules.ProcessOf(e.Processes, entry).Replica, rules.DescribeSnapshot(entry.Before), rules.DescribeSnapshot(entry.After)))
		pids[entry.PID] = true
	}
	for _, f := range e.Faults {
		if pids[f.PID] {
			lines = append(lines, fmt.Sprintf("%s, process %d, from %s to %s", f.Kind, f.PID, f.From.UTC().Format(time.StampMilli), f.To.UTC().Format(time.StampMilli)))
		}
	}
	for _, s := range rules.StartsByUID(e.Starts)[uid] {
		lines = append(lines, fmt.Sprintf("process %d was started at %s for run %q; beside it ran %v", s.PID, s.At.Format(time.StampMilli), s.Run, s.Others))
	}
	return strings.Join(lines, "\n")
}

// formatCounts formats a sum with its parts.
func formatCounts[K ~string](counts map[K]int) string {
	total := 0
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		total += counts[k]
		parts = append(parts, fmt.Sprintf("%s %d", k, counts[k]))
	}
	if len(parts) == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%s)", total, strings.Join(parts, ", "))
}
