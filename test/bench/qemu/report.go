// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// aim is how much longer than QEMU alone a machine of Drover's may take, at the
// median.
const aim = 100 * time.Millisecond

// report is the result of all measurements.
type report struct {
	Machine bench.Machine `json:"machine"`
	Options options       `json:"options"`
	// Command is the line that was started directly.
	Command string  `json:"command"`
	Rows    []row   `json:"figures"`
	Memory  *memory `json:"memory,omitempty"`
}

// row is a time of Drover beside one of QEMU alone.
type row struct {
	What   string   `json:"what"`
	Drover measured `json:"drover"`
	Beside string   `json:"beside"`
	Alone  measured `json:"alone"`
	// Over is how much longer Drover takes at the median, and Noise the noise of
	// that.
	Over  float64 `json:"overMilliseconds"`
	Noise float64 `json:"noiseMilliseconds"`
	Met   bool    `json:"met"`
}

type measured struct {
	Summary bench.Summary `json:"summary"`
	Runs    bench.Sample  `json:"runsMilliseconds"`
}

// memory is the controller's heap and stacks, in bytes.
type memory struct {
	Without    []float64 `json:"withoutMachines"`
	With       []float64 `json:"withMachines"`
	PerMachine float64   `json:"perMachine"`
}

func newReport(o options) *report { return &report{Machine: bench.ThisMachine(), Options: o} }

func (r *report) addComparison(ours, direct times) {
	r.addRow("apply to Active", ours.up, "start to an answer by QMP", direct.up)
	r.addRow("apply to the guest's first output", ours.output, "start to the guest's first output", direct.output)
}

func (r *report) addRow(what string, ours bench.Sample, beside string, alone bench.Sample) {
	over, noise := bench.Difference(alone, ours)
	r.Rows = append(r.Rows, row{
		What: what, Drover: measured{ours.Summary(), ours}, Beside: beside, Alone: measured{alone.Summary(), alone},
		Over: bench.Milliseconds(over), Noise: bench.Milliseconds(noise), Met: over <= aim,
	})
}

func (r *report) addMemory(without, with []float64) {
	r.Memory = &memory{Without: without, With: with, PerMachine: (bench.Median(with) - bench.Median(without)) / float64(r.Options.Machines)}
}

// formatText is the report in readable form.
func (r *report) formatText() string {
	var w strings.Builder
	fmt.Fprintf(&w, "\n%s\n%d turns. Medians, and in brackets the range.\n\n", r.Machine, r.Options.Turns)
	t := bench.NewTable("what", "Drover", "QEMU alone", "takes", "Drover takes longer by", "aim: at most "+bench.FormatDuration(aim))
	for _, row := range r.Rows {
		t.Row(row.What, row.Drover.String(), row.Beside, row.Alone.String(), fmt.Sprintf("%.1f ms, +- %.1f ms", row.Over, row.Noise), bench.Verdict(row.Met))
	}
	fmt.Fprint(&w, t)
	if m := r.Memory; m != nil {
		fmt.Fprintf(&w, "\nThe controller's heap and stacks: %s without machines, %s with %d, so %.0f KB for each.\n",
			formatMegabytes(m.Without), formatMegabytes(m.With), r.Options.Machines, m.PerMachine/1e3)
	}
	return w.String()
}

func (m measured) String() string {
	return fmt.Sprintf("%s (%s to %s)", bench.FormatDuration(m.Summary.P50), bench.FormatDuration(m.Summary.Min), bench.FormatDuration(m.Summary.Max))
}

func formatMegabytes(bytes []float64) string {
	return fmt.Sprintf("%.1f MB (%.1f to %.1f)", bench.Median(bytes)/1e6, bench.Percentile(bytes, 0)/1e6, bench.Percentile(bytes, 100)/1e6)
}
