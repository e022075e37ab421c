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
	"cloudnative.tw/drover/test/framework/history"
)

// effectDuration is how long after its end a fault counts as the cause of what happens.
const effectDuration = 10 * time.Second

// noFault is used instead of a fault where there was none.
const noFault Kind = "no fault"

// Figures are the result of a run.
type Figures struct {
	Took time.Duration
	// Elections counts how often a replica became the leader, Epochs the epochs that
	// changed something, Actors the processes that did.
	Elections, Epochs, Actors int
	Faults                    map[Kind]int
	Changes                   map[journal.Action]int
	// Refused counts fenced calls by the fault during which they came.
	Refused map[Kind]int
	// Unapplied counts changes that were accepted and never made, because their process
	// was killed in between.
	Unapplied                  int
	VMs, Deleted, Observations int
	Violations                 []Violation
}

// Count computes the figures from the evidence.
func Count(e Evidence) Figures {
	f := Figures{
		Faults: map[Kind]int{}, Changes: map[journal.Action]int{}, Refused: map[Kind]int{},
		VMs: len(e.Requested), Observations: len(e.Observations), Violations: Judge(e),
	}
	epochs, actors := map[uint64]bool{}, map[int]bool{}
	for _, entry := range e.Journal {
		f.Changes[entry.Action]++
		if entry.Action == journal.ActionRefused {
			f.Refused[e.causeOf(entry)]++
			continue
		}
		epochs[entry.Epoch], actors[entry.PID] = true, true
	}
	f.Epochs, f.Actors = len(epochs), len(actors)
	for _, fault := range e.Faults {
		f.Faults[fault.Kind]++
	}
	for uid, entries := range history.ByServer(e.Journal) {
		f.Unapplied += e.traceServer(uid, entries).Unapplied
	}
	for _, requested := range e.Requested {
		if !requested.DeletedAt.IsZero() {
			f.Deleted++
		}
	}
	return f
}

// causeOf returns the fault that caused an entry: the process's own latest one, else the
// latest that affected all.
func (e Evidence) causeOf(entry journal.Entry) Kind {
	own, common := Fault{}, Fault{}
	for _, fault := range e.Faults {
		if entry.At.Before(fault.From) || entry.At.After(fault.To.Add(effectDuration)) {
			continue
		}
		if fault.PID == entry.PID && fault.From.After(own.From) {
			own = fault
		}
		if fault.PID == 0 && fault.From.After(common.From) {
			common = fault
		}
	}
	switch {
	case own.Kind != "":
		return own.Kind
	case common.Kind != "":
		return common.Kind
	}
	return noFault
}

// History describes all that is known of a server, in readable form.
func (e Evidence) History(uid types.UID) string {
	requested := e.Requested[uid]
	lines := []string{fmt.Sprintf("requested: %s, deleted at %s, started %d to %d times", requested.Name, requested.DeletedAt.UTC().Format(time.StampMilli), requested.AtLeast, requested.AtMost)}
	lines = append(lines, requested.Log...)
	pids := map[int]bool{0: true}
	for _, entry := range e.Journal {
		if entry.UID != uid {
			continue
		}
		lines = append(lines, fmt.Sprintf("%s (%s): from %s to %s", history.DescribeEntry(entry), history.ProcessOf(e.Processes, entry).Replica, history.DescribeSnapshot(entry.Before), history.DescribeSnapshot(entry.After)))
		pids[entry.PID] = true
	}
	for _, f := range e.Faults {
		if pids[f.PID] {
			lines = append(lines, fmt.Sprintf("%s, process %d, from %s to %s", f.Kind, f.PID, f.From.UTC().Format(time.StampMilli), f.To.UTC().Format(time.StampMilli)))
		}
	}
	return strings.Join(lines, "\n")
}

// Add sums up the figures of several environments.
func (f *Figures) Add(g Figures) {
	f.Took = max(f.Took, g.Took)
	f.Elections, f.Epochs, f.Actors = f.Elections+g.Elections, f.Epochs+g.Epochs, f.Actors+g.Actors
	f.Faults, f.Changes, f.Refused = addCounts(f.Faults, g.Faults), addCounts(f.Changes, g.Changes), addCounts(f.Refused, g.Refused)
	f.Unapplied, f.VMs, f.Deleted, f.Observations = f.Unapplied+g.Unapplied, f.VMs+g.VMs, f.Deleted+g.Deleted, f.Observations+g.Observations
	f.Violations = append(f.Violations, g.Violations...)
}

func addCounts[K comparable](a, b map[K]int) map[K]int {
	out := map[K]int{}
	for _, m := range []map[K]int{a, b} {
		for k, n := range m {
			out[k] += n
		}
	}
	return out
}

// String is a readable table.
func (f Figures) String() string {
	var b strings.Builder
	line := func(what, format string, args ...any) {
		fmt.Fprintf(&b, "  %-12s %s\n", what, fmt.Sprintf(format, args...))
	}
	line("took", "%s", f.Took.Round(time.Second))
	line("faults", "%s", formatCounts(f.Faults))
	line("leaders", "%d elected; %d processes and %d epochs changed something", f.Elections, f.Actors, f.Epochs)
	line("VMs", "%d, %d of them deleted; %d reads of finalizers", f.VMs, f.Deleted, f.Observations)
	changes := maps.Clone(f.Changes)
	delete(changes, journal.ActionRefused)
	line("changes", "%s; %d of them accepted and not made, their process ended", formatCounts(changes), f.Unapplied)
	line("fenced", "%s", formatCounts(f.Refused))
	line("violations", "%s", formatCounts(f.violationsByRule()))
	return b.String()
}

func (f Figures) violationsByRule() map[Rule]int {
	rules := map[Rule]int{}
	for _, v := range f.Violations {
		rules[v.Rule]++
	}
	return rules
}

// formatCounts is a sum with its parts.
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
