// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/journal"
	"cloudnative.tw/drover/test/framework/rules"
)

// readJournal adds what a driver's journal shows of servers: effects, first creations, and the rules that were broken.
func (w *World) readJournal(path string, processes []rules.Process, o *Observed) error {
	entries, err := rules.Read(path, new(int64))
	if err != nil {
		return err
	}
	since, names := w.since(), w.names()
	entries = slices.DeleteFunc(entries, func(e journal.Entry) bool { return e.At.Before(since) })
	for _, h := range rules.Trace(entries, o.Servers, processes) {
		name := names[string(h.UID)]
		for _, v := range append(w.checkNotLate(h.UID, entries), h.Violations...) {
			o.Violations = append(o.Violations, rules.Broken(v.Rule, "%s: %s", name, v.Text))
		}
		o.Effects[name] = addEffects(o.Effects[name], h)
		if n := slices.IndexFunc(h.Applied, func(e journal.Entry) bool { return e.Action == journal.ActionCreate }); n >= 0 {
			o.Created[h.UID] = h.Applied[n].At
		}
	}
	return nil
}

// checkNotLate checks that no server was created for a VirtualMachine that was gone, even if
// the sweep has removed it since.
func (w *World) checkNotLate(uid types.UID, entries []journal.Entry) (broken []Violation) {
	w.mu.Lock()
	gone, isGone := w.gone[string(uid)]
	w.mu.Unlock()
	for _, entry := range rules.ByServer(entries)[uid] {
		if isGone && entry.Action == journal.ActionCreate && entry.At.After(gone) {
			broken = append(broken, rules.Broken(rules.O2, "%s, and the VirtualMachine was gone at %s", rules.DescribeEntry(entry), gone.UTC().Format(time.StampMilli)))
		}
	}
	return broken
}

func addEffects(e Effects, h rules.History) Effects {
	e.Runs += h.CountRuns()
	for _, entry := range h.Applied {
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
