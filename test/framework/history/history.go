// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package history reads in a driver's journal what processes did to each server, and
// which rules were broken. Tests with several processes, some of which are killed, share
// it.
//
// Start with TraceServer, which follows one server through the journal that Read returns.
package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
)

// Process is a process of a replica, from its start to its end, which is zero while
// it runs.
type Process struct {
	Replica  string
	PID      int
	From, To time.Time
}

// Rule is a condition that must hold.
type Rule string

// The rules that a journal alone shows.
const (
	// RuleEpochOrder says that for each server, accepted epochs never decrease.
	RuleEpochOrder Rule = "epochs never decrease"
	// RuleCreatedOnce says that for each UID one server is created, once.
	RuleCreatedOnce Rule = "one server, created once"
	// RuleNothingLost says that a server stays as the last change left it, and is removed
	// only if a user requested that.
	RuleNothingLost Rule = "nothing is lost"
)

// ActionOutside is what others than Drover did to a server. Tests add its entries.
const ActionOutside journal.Action = "outside"

// Violation is a breach of a rule.
type Violation struct {
	Rule Rule
	UID  types.UID
	Text string
}

// String returns it in one line.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Rule, v.UID, v.Text) }

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

// EpochDecreases returns changes of a leader that were accepted after one of a later
// leader.
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
			all = append(all, Violation{RuleEpochOrder, uid, fmt.Sprintf("%s after %s", DescribeEntry(entry), DescribeEntry(last))})
			continue
		}
		last = entry
	}
	return all
}

// DescribeEntry describes who changed a server, and when.
func DescribeEntry(e journal.Entry) string {
	return fmt.Sprintf("%s by process %d of epoch %d at %s", e.Action, e.PID, e.Epoch, e.At.UTC().Format(time.StampMilli))
}

// Server is the history of a server, as far as its entries show it.
type Server struct {
	UID types.UID
	// Applied are the entries whose change was made, and Unapplied counts the others.
	Applied    []journal.Entry
	Unapplied  int
	Violations []Violation
}

// TraceServer follows a server from entry to entry. A change that neither the next entry
// nor the final server shows was never made. That is correct only if its process had
// ended.
func TraceServer(uid types.UID, entries []journal.Entry, final *journal.Snapshot, processes []Process) Server {
	l := Server{UID: uid}
	var had *journal.Snapshot
	for n, entry := range entries {
		if !isSameSnapshot(entry.Before, had) {
			l.Violations = append(l.Violations, Violation{RuleNothingLost, uid, fmt.Sprintf("%s found %s, and %s was left", DescribeEntry(entry), DescribeSnapshot(entry.Before), DescribeSnapshot(had))})
		}
		next, at := final, time.Time{}
		if n+1 < len(entries) {
			next, at = entries[n+1].Before, entries[n+1].At
		}
		if !isSameSnapshot(entry.After, next) && isSameSnapshot(entry.Before, next) && hadExited(processes, entry, at) {
			l.Unapplied++
			had = entry.Before
			continue
		}
		l.Applied, had = append(l.Applied, entry), entry.After
	}
	if !isSameSnapshot(final, had) {
		l.Violations = append(l.Violations, Violation{RuleNothingLost, uid, fmt.Sprintf("there is %s at the end, and %s was left", DescribeSnapshot(final), DescribeSnapshot(had))})
	}
	return l
}

// exitDetectionDelay is how long it takes to notice a process's end.
const exitDetectionDelay = time.Second

// hadExited reports whether the process that made an entry had ended by some time, or at
// all where that is zero.
func hadExited(processes []Process, entry journal.Entry, by time.Time) bool {
	p := ProcessOf(processes, entry)
	return !p.To.IsZero() && (by.IsZero() || p.To.Before(by.Add(exitDetectionDelay)))
}

// ProcessOf returns the process that made an entry; PIDs are reused.
func ProcessOf(processes []Process, entry journal.Entry) Process {
	for _, p := range processes {
		if p.PID == entry.PID && !entry.At.Before(p.From) && (p.To.IsZero() || !entry.At.After(p.To)) {
			return p
		}
	}
	return Process{}
}

func isSameSnapshot(a, b *journal.Snapshot) bool { return a == b || a != nil && b != nil && *a == *b }

// DescribeSnapshot describes a server, or that there is none.
func DescribeSnapshot(s *journal.Snapshot) string {
	if s == nil {
		return "no server"
	}
	return fmt.Sprintf("%s, run %q, %s", s.ID, s.Run, s.State)
}

// CountRuns returns how often the server was started.
func (l Server) CountRuns() int {
	runs, last := 0, ""
	for _, entry := range l.Applied {
		if entry.After == nil || entry.After.Run == last {
			continue
		}
		if last = entry.After.Run; entry.Action != ActionOutside {
			runs++
		}
	}
	return runs
}

// CheckCreation checks that there is one creation, and the same server from then on.
func (l Server) CheckCreation() []Violation {
	var all []Violation
	id := ""
	for _, entry := range l.Applied {
		switch {
		case entry.Action == journal.ActionCreate && id != "":
			all = append(all, Violation{RuleCreatedOnce, l.UID, fmt.Sprintf("%s, though %s had been created", DescribeEntry(entry), id)})
		case entry.Action == ActionOutside:
		case entry.Action != journal.ActionCreate && (entry.Before == nil || entry.After != nil && entry.After.ID != entry.Before.ID):
			all = append(all, Violation{RuleCreatedOnce, l.UID, fmt.Sprintf("%s made %s of %s", DescribeEntry(entry), DescribeSnapshot(entry.After), DescribeSnapshot(entry.Before))})
		}
		if entry.After != nil {
			id = entry.After.ID
		} else if entry.Action == ActionOutside {
			id = ""
		}
	}
	return all
}
