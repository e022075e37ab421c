// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Report has the figures of a suite, and the conditions under which they were measured.
type Report struct {
	Machine string   `json:"machine"`
	Turns   int      `json:"turns,omitempty"`
	Sizes   []int    `json:"vms,omitempty"` // the numbers of VMs
	Notes   []string `json:"notes,omitempty"`
	Rows    []*Row   `json:"figures"`
}

// Row is a figure, with its comparison.
type Row struct {
	What   string `json:"what"`
	VMs    int    `json:"vms"`
	Unit   string `json:"unit"`
	Ours   Runs   `json:"ours"`
	Beside string `json:"beside,omitempty"` // the name of the floor
	Floor  Runs   `json:"floor,omitempty"`
	Aim    string `json:"aim,omitempty"`
	Met    bool   `json:"met,omitempty"`
}

// Runs are several measurements of a figure.
type Runs []float64

// NewReport begins a report.
func NewReport() *Report { return &Report{Machine: describeMachine()} }

// Notef adds a note for readers of the figures.
func (r *Report) Notef(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// AddRow adds a row.
func (r *Report) AddRow(what string, vms int, unit string, ours ...float64) *Row {
	row := &Row{What: what, VMs: vms, Unit: unit, Ours: ours}
	r.Rows = append(r.Rows, row)
	return row
}

// AddDifference adds a row with the difference between the medians of more and base, and its noise.
func (r *Report) AddDifference(what string, vms int, unit string, more, base []float64) *Row {
	by, noise := Difference(base, more)
	return r.AddRow(what, vms, unit, by).CompareWith("noise", noise)
}

// CompareWith compares the row with measurements of another program in the same turns, if there are any.
func (r *Row) CompareWith(name string, floor ...float64) *Row {
	if len(floor) > 0 {
		r.Beside, r.Floor = name, floor
	}
	return r
}

// ratios returns the ratio of each turn.
func (r *Row) ratios() (ratios Runs) {
	for n, ours := range r.Ours {
		if n < len(r.Floor) && r.Floor[n] > 0 {
			ratios = append(ratios, ours/r.Floor[n])
		}
	}
	return ratios
}

// RatioAtMost sets an upper bound of the median ratio as the aim.
func (r *Row) RatioAtMost(limit float64) {
	if ratios := r.ratios(); len(ratios) > 0 {
		r.Aim, r.Met = fmt.Sprintf("at most %.3g x", limit), Median(ratios) <= limit
	}
}

// RatioAtLeast sets a lower bound of the median ratio as the aim.
func (r *Row) RatioAtLeast(limit float64) {
	if ratios := r.ratios(); len(ratios) > 0 {
		r.Aim, r.Met = fmt.Sprintf("at least %.3g x", limit), Median(ratios) >= limit
	}
}

// AtMost sets an upper bound of the median as the aim.
func (r *Row) AtMost(limit float64) {
	r.Aim, r.Met = fmt.Sprintf("at most %g", limit), Median(r.Ours) <= limit
}

// PercentileAtMost sets an upper bound of a percentile as the aim; 100 means the largest value.
func (r *Row) PercentileAtMost(p, limit float64) {
	r.Aim, r.Met = fmt.Sprintf("p%g at most %g", p, limit), Percentile(r.Ours, p) <= limit
}

func (f Runs) String() string {
	switch len(f) {
	case 0:
		return ""
	case 1:
		return formatNumber(f[0])
	}
	text := fmt.Sprintf("%s (%s to %s)", formatNumber(Median(f)), formatNumber(Percentile(f, 0)), formatNumber(Percentile(f, 100)))
	if len(f) >= 20 {
		text += ", p95 " + formatNumber(Percentile(f, 95))
	}
	return text
}

// formatNumber formats a number with about three significant digits.
func formatNumber(f float64) string {
	switch {
	case math.Abs(f) >= 100 || f == float64(int64(f)):
		return strconv.FormatFloat(f, 'f', 0, 64)
	case math.Abs(f) >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case math.Abs(f) < 0.1:
		return strconv.FormatFloat(f, 'g', 2, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

// String returns the report in Markdown that is also readable on a terminal.
func (r *Report) String() string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n%s\n%s\n\n", r.Machine, strings.Join(append(r.Notes, "Medians, and in brackets the range."), "\n"))
	tab := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	line := func(cells ...string) { fmt.Fprintf(tab, "| %s\t|\n", strings.Join(cells, "\t| ")) }
	line("what", "VMs", "Drover", "unit", "beside", "takes", "ratio", "aim")
	line("---", "---", "---", "---", "---", "---", "---", "---")
	for _, row := range r.Rows {
		aim := row.Aim
		if aim != "" {
			aim += ": " + map[bool]string{true: "met", false: "missed"}[row.Met]
		}
		line(row.What, strconv.Itoa(row.VMs), row.Ours.String(), row.Unit, row.Beside, row.Floor.String(), row.ratios().String(), aim)
	}
	_ = tab.Flush()
	return text.String()
}

// write writes the report to a file as JSON, and creates the folder if needed.
func (r *Report) write(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
