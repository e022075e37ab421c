// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cloudnative.tw/drover/internal/controller/decisions"
)

// lastDecisions is how many decisions are shown of a run that broke a rule.
const lastDecisions = 30

// decisionsFile is where a process records its decisions, by its number from 0 on.
func (w *World) decisionsFile(n int) string {
	return filepath.Join(w.Dir, fmt.Sprintf("decisions-%d", n))
}

// Decisions returns the last decisions of all processes, in sentences.
func (r *Replicas) Decisions() string {
	var all []decisions.Record
	for n := range r.Processes() {
		records, err := readDecisions(r.world.decisionsFile(n))
		if err != nil {
			return "the decisions cannot be read: " + err.Error()
		}
		all = append(all, records...)
	}
	slices.SortStableFunc(all, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	return decisions.Format(all[max(0, len(all)-lastDecisions):]...)
}

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
	f, err := decisions.Read(file)
	return f.Records, err
}
