// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"cloudnative.tw/drover/test/framework/rules"
)

// Size says which share of its cases a kind explores.
type Size string

// The sizes, from the smallest to the largest.
const (
	// SizeShort is the size in the gate.
	SizeShort Size = "short"
	// SizeDefault is the size in the full tier.
	SizeDefault Size = "default"
	// SizeFull is the size of make faults-full: one fault at every point.
	SizeFull Size = "full"
	// SizeExhaustive has every fault at every point. It is for one kind at a time.
	SizeExhaustive Size = "exhaustive"
	// SizeSoak is the size of make soak. It is for one kind at a time.
	SizeSoak Size = "soak"
)

// Kind is a kind of fault. A new kind needs a row in the table of package faults.
type Kind struct {
	Name string
	// NeedsNoLab is set for a kind that starts no controllers. Its functions get a nil Lab.
	NeedsNoLab bool
	// Unmarked is set for a kind whose controllers are built without crash points, as for
	// users.
	Unmarked bool
	// Sizes lists the sizes in which the kind is explored.
	Sizes []Size
	// NeedsOwnLab is set for a kind that disturbs all worlds. Other kinds share a Lab.
	NeedsOwnLab bool
	// NeedsPods is set for a kind whose lab must have PodAPIs. These kinds share a lab.
	NeedsPods bool
	// Explore injects the faults of this kind and returns what it found. It returns an
	// error if it could not explore.
	Explore func(ctx context.Context, l *Lab, size Size) (Result, error)
	// Replay runs one case again, by its name, which violations have.
	Replay func(ctx context.Context, l *Lab, name string) (Result, error)
}

// IsIn reports whether a kind is explored in a size.
func (k Kind) IsIn(size Size) bool { return slices.Contains(k.Sizes, size) }

// Result counts the explored cases of a kind.
type Result struct {
	// Points is how many different faults occurred.
	Points int
	// Cases counts the cases in which a fault could occur, and Occurred those in which it did.
	// Both are zero for a kind that causes its faults directly.
	Cases, Occurred int
	// Runs counts the runs of all cases.
	Runs       int
	Violations []Violation
	// Notes are further lines of output of this kind, such as a coverage.
	Notes []string
	Took  time.Duration
}

// AddRun adds a run and the rules that it broke.
func (r *Result) AddRun(broken []Violation) {
	r.Runs++
	r.Violations = append(r.Violations, broken...)
}

// minOccurred is the share of the cases in which the fault must occur. It need not occur in up to
// maxMissed cases: in some kinds this depends on timing.
const minOccurred, maxMissed = 0.7, 5

// CheckExplored returns an error if too few faults occurred for a result without violations to mean anything.
func (r Result) CheckExplored() error {
	if r.Points == 0 || r.Runs == 0 {
		return fmt.Errorf("no fault occurred in %d runs", r.Runs)
	}
	if r.Cases-r.Occurred > maxMissed && float64(r.Occurred) < minOccurred*float64(r.Cases) {
		return fmt.Errorf("the fault occurred in %d of %d cases, which is less than %.0f %%", r.Occurred, r.Cases, 100*minOccurred)
	}
	return nil
}

// Violation is a rule that was broken in a case.
type Violation = rules.Violation

// PrintHeader prints the header of the rows of PrintRow.
func PrintHeader(w io.Writer) {
	printColumns(w, "kind of fault", "points explored", "runs", "violations", "time")
}

// PrintRow prints the row of a kind.
func (r Result) PrintRow(w io.Writer, name string) {
	printColumns(w, name, strconv.Itoa(r.Points), strconv.Itoa(r.Runs), strconv.Itoa(len(r.Violations)), r.Took.Round(time.Second).String())
}

func printColumns(w io.Writer, name, points, runs, violations, took string) {
	_, _ = fmt.Fprintf(w, "%26s  %15s  %6s  %10s  %8s\n", name, points, runs, violations, took)
}

// PrintNotes prints the notes of this kind.
func (r Result) PrintNotes(w io.Writer, name string) {
	for _, note := range slices.Sorted(slices.Values(r.Notes)) {
		_, _ = fmt.Fprintf(w, "%s: %s\n", name, note)
	}
}
