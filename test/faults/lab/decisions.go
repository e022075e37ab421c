// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"cloudnative.tw/drover/internal/controller/decisions"
)

// lastDecisions is how many decisions are shown of a run that broke a rule.
const lastDecisions = 30

// decisionsFiles matches all of them, with those that were full.
const decisionsFiles = "decisions-*"

// decisionsFile is where a process records its decisions, by a number from 0 on. Processes
// that run one after the other may share one.
func (w *World) decisionsFile(n int) string {
	return filepath.Join(w.Dir, fmt.Sprintf("decisions-%d", n))
}

// RecordDecisions is the flag for that.
func (w *World) RecordDecisions(n int) string { return "--decisions=" + w.decisionsFile(n) }

// Decisions returns the last ones in so many files, in sentences.
func (w *World) Decisions(files int) string {
	var all []decisions.Record
	for n := range files {
		records, err := readDecisions(w.decisionsFile(n))
		if err != nil {
			return "the decisions cannot be read: " + err.Error()
		}
		all = append(all, records...)
	}
	slices.SortStableFunc(all, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	return decisions.Format(all[max(0, len(all)-lastDecisions):]...)
}

// replayDecisions derives all recorded decisions again, and returns those that come out
// otherwise (O14).
func (w *World) replayDecisions() (broken []Violation, err error) {
	if w.DecidesOtherwise {
		return nil, nil
	}
	paths, err := filepath.Glob(filepath.Join(w.Dir, decisionsFiles))
	if err != nil {
		return nil, err
	}
	count := 0
	for _, path := range paths {
		records, err := readDecisions(path)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			count++
			differences, err := r.Replay()
			if err != nil || len(differences) > 0 {
				broken = append(broken, Violation{Rule: "O14", Text: fmt.Sprintf("decision %d of %s differs when it is derived again: %+v, %v", r.Sequence, r.Replica, differences, err)})
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.Lab.replayed.Add(int64(max(0, count-w.replayed)))
	w.replayed = max(w.replayed, count)
	return broken, nil
}

// TakeReplayed returns how many decisions were derived again since the last call.
func (l *Lab) TakeReplayed() int64 { return l.replayed.Swap(0) }

// ForgetDecisions empties as many files, to which processes go on to append.
func (w *World) ForgetDecisions(files int) error {
	w.mu.Lock()
	w.replayed = 0
	w.mu.Unlock()
	for n := range files {
		if err := os.Truncate(w.decisionsFile(n), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Decisions returns the last decisions of all processes, in sentences.
func (r *Replicas) Decisions() string { return r.world.Decisions(len(r.Processes())) }

// readDecisions returns those that were written before the process ended; the last line may be
// a part of one. A process may have recorded none.
func readDecisions(path string) ([]decisions.Record, error) {
	file, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if info, err := file.Stat(); err != nil || info.Size() == 0 {
		return nil, err
	}
	f, err := decisions.Read(file)
	if len(f.Records) == 0 && f.Broken > 0 {
		return nil, nil // it ended while it wrote the first one
	}
	return f.Records, err
}
