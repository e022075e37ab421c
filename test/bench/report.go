// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Report is the figures of a benchmark, where they were measured and how.
type Report struct {
	Machine Machine  `json:"machine"`
	Options any      `json:"options"`
	Notes   []string `json:"notes,omitempty"`
	Rows    []*Row   `json:"figures"`
}

// Row is a figure, with its comparison.
type Row struct {
	Suite  string    `json:"suite"`
	What   string    `json:"what"`
	VMs    int       `json:"vms"`
	Unit   string    `json:"unit"`
	Ours   Measured  `json:"ours"`
	Beside string    `json:"beside,omitempty"` // what floor is
	Floor  *Measured `json:"floor,omitempty"`
	Ratio  *Measured `json:"ratio,omitempty"` // of each turn
	Aim    string    `json:"aim,omitempty"`
	Met    *bool     `json:"met,omitempty"`
}

// Measured is a figure that was measured several times.
type Measured struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	P95    float64   `json:"p95"`
	Max    float64   `json:"max"`
	Runs   []float64 `json:"runs"`
}

func newMeasured(runs []float64) Measured {
	return Measured{Median: Median(runs), Min: Percentile(runs, 0), P95: Percentile(runs, 95), Max: Percentile(runs, 100), Runs: runs}
}

// NewReport begins the report of a run with these options.
func NewReport(options any) *Report { return &Report{Machine: ThisMachine(), Options: options} }

// LoadRows takes the rows of an earlier run over, until they are measured again.
func (r *Report) LoadRows(path string) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old := &Report{}
	if err == nil {
		err = json.Unmarshal(content, old)
	}
	r.Rows = old.Rows
	return err
}

// Notef adds what a reader of the figures has to know.
func (r *Report) Notef(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// AddRow adds a row, in place of one of an earlier run.
func (r *Report) AddRow(suite, what string, vms int, unit string, ours ...float64) *Row {
	fresh := &Row{Suite: suite, What: what, VMs: vms, Unit: unit, Ours: newMeasured(ours)}
	same := func(old *Row) bool { return old.Suite == suite && old.What == what && old.VMs == vms }
	if at := slices.IndexFunc(r.Rows, same); at >= 0 {
		r.Rows[at] = fresh
	} else {
		r.Rows = append(r.Rows, fresh)
	}
	Logf("%s, %d VMs: %s %s", what, vms, fresh.Ours, unit)
	return fresh
}

// AddDifference adds how much larger the median of more is, beside the noise of that.
func (r *Report) AddDifference(suite, what string, vms int, unit string, more, base []float64) *Row {
	by, noise := Difference(base, more)
	return r.AddRow(suite, what, vms, unit, by).CompareWith("noise", noise)
}

// FindFigure returns a row's figures, none if it was not measured.
func (r *Report) FindFigure(suite, what string, vms int) (Measured, bool) {
	for _, row := range r.Rows {
		if row.Suite == suite && row.What == what && row.VMs == vms {
			return row.Ours, true
		}
	}
	return Measured{}, false
}

// CompareWith compares the row with what was measured in the same turns, if anything was.
func (r *Row) CompareWith(name string, floor ...float64) *Row {
	if len(floor) == 0 {
		return r
	}
	f := newMeasured(floor)
	r.Beside, r.Floor = name, &f
	var ratios []float64
	for n, ours := range r.Ours.Runs {
		if n < len(floor) && floor[n] > 0 {
			ratios = append(ratios, ours/floor[n])
		}
	}
	if len(ratios) > 0 {
		ratio := newMeasured(ratios)
		r.Ratio = &ratio
		Logf("  %s %s %s, ratio %s", name, f, r.Unit, ratio)
	}
	return r
}

// RatioAtMost is an aim for the median of the ratio.
func (r *Row) RatioAtMost(limit float64) {
	if r.Ratio != nil {
		r.Aim, r.Met = fmt.Sprintf("at most %.3g x", limit), new(r.Ratio.Median <= limit)
	}
}

// AtMost is an aim for the median.
func (r *Row) AtMost(limit float64) {
	r.Aim, r.Met = fmt.Sprintf("at most %g", limit), new(r.Ours.Median <= limit)
}

// PercentileAtMost is an aim for a percentile; 100 is the largest.
func (r *Row) PercentileAtMost(p, limit float64) {
	r.Aim, r.Met = fmt.Sprintf("p%g at most %g", p, limit), new(Percentile(r.Ours.Runs, p) <= limit)
}

func (m Measured) String() string {
	if len(m.Runs) == 1 {
		return formatNumber(m.Median)
	}
	text := fmt.Sprintf("%s (%s to %s)", formatNumber(m.Median), formatNumber(m.Min), formatNumber(m.Max))
	if len(m.Runs) >= 20 {
		text += ", p95 " + formatNumber(m.P95)
	}
	return text
}

// formatNumber shows three of the digits, or all before the point.
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

// String is the report in readable form.
func (r *Report) String() string {
	t := NewTable("suite", "what", "VMs", "Drover", "unit", "beside", "takes", "ratio", "aim")
	for _, row := range r.Rows {
		t.Row(row.cells()...)
	}
	notes := strings.Join(append(r.Notes, "Medians, and in brackets the range."), "\n")
	return fmt.Sprintf("\n%s\n%s\n\n%s", r.Machine, notes, t)
}

func (r *Row) cells() []string {
	cells := []string{r.Suite, r.What, strconv.Itoa(r.VMs), r.Ours.String(), r.Unit, r.Beside, "", "", ""}
	if r.Floor != nil {
		cells[6] = r.Floor.String()
	}
	if r.Ratio != nil {
		cells[7] = r.Ratio.String()
	}
	if r.Met != nil {
		cells[8] = r.Aim + ": " + map[bool]string{true: "met", false: "missed"}[*r.Met]
	}
	return cells
}

// Finish prints the report, and writes it to a file.
func (r *Report) Finish(path string) error {
	fmt.Println(r)
	return WriteJSON(path, r)
}
