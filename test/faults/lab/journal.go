// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/framework/history"
)

// readJournal adds what a driver's journal shows of servers, of which these exist: effects,
// first creations, and the rules that were broken.
func (w *World) readJournal(path string, final map[types.UID]*journal.Snapshot, processes []history.Process, o *Observed) error {
	entries, err := history.Read(path, new(int64))
	if err != nil {
		return err
	}
	since, names := w.since(), w.names()
	entries = slices.DeleteFunc(entries, func(e journal.Entry) bool { return e.At.Before(since) })
	for uid, entries := range history.ByServer(entries) {
		name := names[string(uid)]
		o.Violations = append(o.Violations, w.checkNotLate(name, uid, entries)...)
		s := history.TraceServer(uid, withSnapshots(entries, final[uid]), final[uid], processes)
		for _, v := range append(append(s.CheckCreation(), s.Violations...), history.EpochDecreases(entries)...) {
			o.Violations = append(o.Violations, Violation{Rule: ruleOf(v.Rule), Text: fmt.Sprintf("%s: %s: %s", v.Rule, name, v.Text)})
		}
		o.Effects[name] = addEffects(o.Effects[name], s)
		if n := slices.IndexFunc(s.Applied, func(e journal.Entry) bool { return e.Action == journal.ActionCreate }); n >= 0 {
			o.Created[string(uid)] = s.Applied[n].At
		}
	}
	return nil
}

// withSnapshots adds the server's id to the entries of a version of the driver qemu that did not
// record it.
func withSnapshots(entries []journal.Entry, final *journal.Snapshot) []journal.Entry {
	known := cmp.Or(final, &journal.Snapshot{ID: "unknown"})
	all := slices.Clone(entries)
	for n := range slices.Backward(all) {
		e := &all[n]
		if e.Before != nil || e.After != nil { // it is the one of the entries before, too
			known = cmp.Or(e.Before, e.After)
			continue
		}
		if e.Action != journal.ActionCreate {
			e.Before = known
		}
		if e.Action != journal.ActionDelete && e.Action != journal.ActionRelease {
			e.After = known
		}
	}
	return all
}

// checkNotLate checks that no server was created for a VirtualMachine that was gone, even if
// the sweep has removed it since.
func (w *World) checkNotLate(name string, uid types.UID, entries []journal.Entry) []Violation {
	w.mu.Lock()
	gone, isGone := w.gone[string(uid)]
	w.mu.Unlock()
	var all []Violation
	for _, entry := range entries {
		if isGone && entry.Action == journal.ActionCreate && entry.At.After(gone) {
			all = append(all, Violation{Rule: "O2", Text: fmt.Sprintf("%s: %s, and the VirtualMachine was gone at %s", name, history.DescribeEntry(entry), gone.UTC().Format(time.StampMilli))})
		}
	}
	return all
}

// ruleOf returns the oracle that a rule of the journal belongs to.
func ruleOf(r history.Rule) string {
	switch r {
	case history.RuleEpochOrder:
		return "O5"
	case history.RuleCreatedOnce:
		return "O3"
	default:
		return "O1"
	}
}

func addEffects(e Effects, s history.Server) Effects {
	e.Runs += s.CountRuns()
	for _, entry := range s.Applied {
		switch entry.Action {
		case journal.ActionCreate:
			e.Creates++
		case journal.ActionDelete:
			e.Deletes++
		case journal.ActionRelease:
			e.Releases++
		default:
		}
	}
	return e
}
