// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"
)

// Size says how much of what a kind could explore it explores.
type Size string

// The sizes.
const (
	// SizeShort is that of every test run.
	SizeShort Size = "short"
	// SizeDefault is that of make faults.
	SizeDefault Size = "default"
	// SizeFull is that of make faults-full.
	SizeFull Size = "full"
)

// Kind is a kind of fault. A new one is a row of the table in package faults.
type Kind struct {
	Name string
	// NeedsNoLab is set for a kind that starts no controllers. Its functions get no Lab.
	NeedsNoLab bool
	// Unmarked is set for a kind whose controllers are as users have them, without crash
	// points.
	Unmarked bool
	// Sizes are those in which it is explored; none means all.
	Sizes []Size
	// NeedsOwnLab is set for a kind that disturbs all worlds. Other kinds share a Lab.
	NeedsOwnLab bool
	// Explore injects the faults of this kind and returns what it found. It returns an
	// error if it could not explore.
	Explore func(ctx context.Context, l *Lab, size Size) (Result, error)
	// Replay runs one case again, by the name that a violation has.
	Replay func(ctx context.Context, l *Lab, name string) (Result, error)
}

// Result is what a kind has explored.
type Result struct {
	// Points is how many different faults occurred.
	Points int
	// Runs is how many runs that took.
	Runs       int
	Violations []Violation
	// Notes are counts of the kind's own, such as a coverage.
	Notes []string
	Took  time.Duration
}

// AddRun adds a run and the rules that it broke.
func (r *Result) AddRun(broken []Violation) {
	r.Runs++
	r.Violations = append(r.Violations, broken...)
}

// Violation is a rule that was broken in a case.
type Violation struct {
	// Case repeats the run that broke it.
	Case string
	// Rule is the oracle, such as O1.
	Rule string
	Text string
	// History is what the controllers decided, in sentences; empty for a kind without.
	History string
}

// String returns it in one line.
func (v Violation) String() string { return fmt.Sprintf("%s: %s: %s", v.Case, v.Rule, v.Text) }

// PrintTable prints a line for each kind.
func PrintTable(w io.Writer, names []string, results map[string]Result) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(t, "kind of fault\tpoints explored\truns\tviolations\ttime\t")
	for _, name := range names {
		r, ok := results[name]
		if ok {
			_, _ = fmt.Fprintf(t, "%s\t%d\t%d\t%d\t%s\t\n", name, r.Points, r.Runs, len(r.Violations), r.Took.Round(time.Second))
		}
	}
	_ = t.Flush()
	for _, name := range names {
		for _, note := range slices.Sorted(slices.Values(results[name].Notes)) {
			_, _ = fmt.Fprintf(w, "%s: %s\n", name, note)
		}
	}
}
