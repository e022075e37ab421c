// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rules

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// lastDecisions is how many decisions FormatDecisions shows.
const lastDecisions = 30

// DecisionsFile is the content of a file of decisions.
type DecisionsFile struct {
	Records []decisions.Record
	// Broken counts lines that cannot be parsed, such as the last line of a process that was killed.
	Broken int
}

// ParseDecisions parses the file of the flag --decisions, or the output of kubectl vm explain --history -o json.
func ParseDecisions(text []byte) (f DecisionsFile, err error) {
	var all decisions.Histories
	if json.Unmarshal(text, &all) == nil && all.Replicas != nil {
		for _, h := range all.Replicas {
			f.Records = append(f.Records, h.Decisions...)
		}
		return f, nil
	}
	index := map[string]int{} // of records, by replica and sequence number
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) > 0 && !f.add(index, line) {
			f.Broken++
		}
	}
	if len(f.Records) == 0 {
		return f, errors.New("the file does not contain any decisions")
	}
	return f, nil
}

// add adds a line, and reports whether it can be parsed. A line is a record, or an update of an earlier
// record, which lacks an input.
func (f *DecisionsFile) add(index map[string]int, text []byte) bool {
	var line struct {
		decisions.Record
		Input *policy.Input         `json:"input"`
		Later *decisions.LaterFacts `json:"later"`
	}
	if json.Unmarshal(text, &line) != nil || line.Input == nil && line.Later == nil {
		return false
	}
	key := fmt.Sprint(line.Replica, "/", line.Sequence)
	n, known := index[key]
	switch {
	case line.Input != nil:
		line.Record.Input = *line.Input
		index[key] = len(f.Records)
		f.Records = append(f.Records, line.Record)
	case known:
		addUpdate(&f.Records[n], *line.Later)
	}
	return true
}

// addUpdate adds to a record what became known later.
func addUpdate(r *decisions.Record, later decisions.LaterFacts) {
	if later.Repeats > 0 {
		r.Repeats, r.Until = later.Repeats, later.Until
	}
	if later.Outcome != (decisions.Outcome{}) {
		r.Outcome = later.Outcome
	}
}

// ReadDecisions returns the decisions that controllers have recorded in files, in the order of time. A
// file may be missing or empty. The last line of a process that was killed may be incomplete.
func ReadDecisions(paths ...string) (all []decisions.Record, err error) {
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && len(content) == 0 {
			continue
		}
		if err != nil {
			return nil, err
		}
		f, err := ParseDecisions(content)
		if err != nil && f.Broken == 0 {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, f.Records...)
	}
	slices.SortStableFunc(all, func(a, b decisions.Record) int { return a.At().Compare(b.At()) })
	return all, nil
}

// FormatDecisions returns the last decisions in sentences, for finding the cause of a violation.
func FormatDecisions(all []decisions.Record) string {
	return decisions.Format(all[max(0, len(all)-lastDecisions):]...)
}

// CheckDecisions checks that each decision is the same when it is derived from its input again.
func CheckDecisions(all []decisions.Record) (broken []Violation) {
	for i := range all {
		r := &all[i]
		if differences := Replay(r); len(differences) > 0 {
			broken = append(broken, Broken(Reproducible, "decision %d of %s about %s differs when it is derived again: %+v", r.Sequence, r.Replica, r.Key(), differences))
		}
	}
	return broken
}
