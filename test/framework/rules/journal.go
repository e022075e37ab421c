// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
)

// Process is a process of a replica. From is its start and To its end, which is zero
// while the process runs.
type Process struct {
	Replica  string
	PID      int
	From, To time.Time
}

// ActionOutside is an action on a server that was not Drover's. Tests add its entries to the journal.
const ActionOutside journal.Action = "outside"

// Read reads the complete lines of a journal from an offset on, and moves the offset.
func Read(path string, offset *int64) ([]journal.Entry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	content := make([]byte, info.Size()-*offset)
	if _, err := f.ReadAt(content, *offset); err != nil {
		return nil, err
	}
	var entries []journal.Entry
	for line := range bytes.Lines(content) {
		if !bytes.HasSuffix(line, []byte("\n")) {
			break
		}
		if len(line) == 1 { // two processes wrote at the same time
			*offset++
			continue
		}
		var entry journal.Entry
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, fmt.Errorf("journal: %q: %w", line, err)
		}
		*offset += int64(len(line))
		entries = append(entries, entry)
	}
	return entries, nil
}

// ByServer returns the journal of each server, without the calls that were refused.
func ByServer(entries []journal.Entry) map[types.UID][]journal.Entry {
	servers := map[types.UID][]journal.Entry{}
	for _, entry := range entries {
		if entry.Action != journal.ActionRefused {
			servers[entry.UID] = append(servers[entry.UID], entry)
		}
	}
	return servers
}

// EpochDecreases returns the changes of a leader that were accepted after a change of a
// later leader.
func EpochDecreases(entries []journal.Entry) []Violation {
	var all []Violation
	for uid, entries := range ByServer(entries) {
		all = append(all, epochDecreases(uid, entries)...)
	}
	return all
}

func epochDecreases(uid types.UID, entries []journal.Entry) []Violation {
	var all []Violation
	var last journal.Entry
	for _, entry := range entries {
		if entry.Action == ActionOutside {
			continue
		}
		if entry.Epoch < last.Epoch {
			all = append(all, Violation{Rule: OneLeader, UID: uid, Text: fmt.Sprintf("%s after %s", DescribeEntry(entry), DescribeEntry(last))})
			continue
		}
		last = entry
	}
	return all
}

// DescribeEntry describes a change of a server: when, and by which process if it is known.
func DescribeEntry(e journal.Entry) string {
	by := ""
	if e.PID != 0 {
		by = fmt.Sprintf(" by process %d of epoch %d", e.PID, e.Epoch)
	}
	return fmt.Sprintf("%s%s at %s", e.Action, by, e.At.UTC().Format(time.StampMilli))
}

// History has the changes of one server according to a journal.
type History struct {
	UID types.UID
	// Applied are the entries whose changes were made.
	Applied    []journal.Entry
	Violations []Violation
}

// Trace returns the history of each server in a journal, in the order of UIDs. servers are those that exist at the end.
func Trace(entries []journal.Entry, servers []Server, processes []Process) (all []History) {
	byServer, final := ByServer(entries), ByUID(servers)
	for _, uid := range slices.Sorted(maps.Keys(byServer)) {
		h := History{UID: uid}
		var last *journal.Snapshot
		if remaining := final[uid]; len(remaining) > 0 {
			last = remaining[0].Snapshot
		}
		h.traceEntries(byServer[uid], last, processes)
		h.Violations = slices.Concat(epochDecreases(uid, byServer[uid]), h.Violations, h.checkCreation())
		all = append(all, h)
	}
	return all
}

// traceEntries follows the server from entry to entry. If neither the next entry nor the
// final server shows a change, it was never made. This is allowed only if the process that
// wrote the entry had ended.
func (h *History) traceEntries(entries []journal.Entry, final *journal.Snapshot, processes []Process) {
	broken := func(format string, args ...any) {
		h.Violations = append(h.Violations, Violation{Rule: ServerPresent, UID: h.UID, Text: fmt.Sprintf(format, args...)})
	}
	var applied *journal.Snapshot
	for n, entry := range entries {
		if !isSameSnapshot(entry.Before, applied) {
			broken("%s found %s, and %s was left by the entry before", DescribeEntry(entry), DescribeSnapshot(entry.Before), DescribeSnapshot(applied))
		}
		next, at := final, time.Time{}
		if n+1 < len(entries) {
			next, at = entries[n+1].Before, entries[n+1].At
		}
		if !isSameSnapshot(entry.After, next) && isSameSnapshot(entry.Before, next) && hadExited(processes, entry, at) {
			applied = entry.Before
			continue
		}
		h.Applied, applied = append(h.Applied, entry), entry.After
	}
	if !isSameSnapshot(final, applied) {
		broken("there is %s at the end, and %s was left by the last entry", DescribeSnapshot(final), DescribeSnapshot(applied))
	}
}

// exitDetectionDelay is how long it takes to notice a process's end.
const exitDetectionDelay = time.Second

// hadExited reports whether the process that wrote an entry had ended by a time, or ever
// if the time is zero.
func hadExited(processes []Process, entry journal.Entry, when time.Time) bool {
	p := ProcessOf(processes, entry)
	return !p.To.IsZero() && (when.IsZero() || p.To.Before(when.Add(exitDetectionDelay)))
}

// ProcessOf returns the process that wrote an entry. It compares times too, as PIDs are reused.
func ProcessOf(processes []Process, entry journal.Entry) Process {
	for _, p := range processes {
		if p.PID == entry.PID && !entry.At.Before(p.From) && (p.To.IsZero() || !entry.At.After(p.To)) {
			return p
		}
	}
	return Process{}
}

func isSameSnapshot(a, b *journal.Snapshot) bool { return a == b || a != nil && b != nil && *a == *b }

// DescribeSnapshot describes a server; nil means no server.
func DescribeSnapshot(s *journal.Snapshot) string {
	if s == nil {
		return "no server"
	}
	return fmt.Sprintf("%s, run %q, %s", s.ID, s.Run, s.State)
}

// CountRuns returns how often the server was started.
func (h History) CountRuns() int {
	runs, last := 0, ""
	for _, entry := range h.Applied {
		if entry.After == nil || entry.After.Run == last {
			continue
		}
		if last = entry.After.Run; entry.Action != ActionOutside {
			runs++
		}
	}
	return runs
}

// checkCreation checks that the server was created once and keeps its ID.
func (h History) checkCreation() []Violation {
	var all []Violation
	id := ""
	for _, entry := range h.Applied {
		switch {
		case entry.Action == journal.ActionCreate && id != "":
			all = append(all, Violation{Rule: OneServer, UID: h.UID, Text: fmt.Sprintf("%s, though %s had been created", DescribeEntry(entry), id)})
		case entry.Action == ActionOutside:
		case entry.Action != journal.ActionCreate && (entry.Before == nil || entry.After != nil && entry.After.ID != entry.Before.ID):
			all = append(all, Violation{Rule: OneServer, UID: h.UID, Text: fmt.Sprintf("%s made %s of %s", DescribeEntry(entry), DescribeSnapshot(entry.After), DescribeSnapshot(entry.Before))})
		}
		if entry.After != nil {
			id = entry.After.ID
		} else if entry.Action == ActionOutside {
			id = ""
		}
	}
	return all
}
