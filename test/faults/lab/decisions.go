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

// ForgetDecisions empties as many files, to which processes go on to append.
func (w *World) ForgetDecisions(files int) error {
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
	return f.Records, err
}
