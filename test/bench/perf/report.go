// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"cloudnative.tw/drover/test/bench"
)

// aims are the limits for the figures. Rows name them by their key.
var aims = []struct{ key, what, limit string }{
	{"fake-1000", "fake, 1,000 VMs to Active", "at most 1.2 x noop"},
	{"fake-1000-bare", "the same", "at most 1.2 x bare-noop"},
	{"fake-10000", "fake, 10,000 VMs to Active, time per VM", "at most 1.2 x that of 1,000"},
	{"docker-1", "docker, 1 VM to Active", "at most 1.25 x create and start by the API"},
	{"docker-100", "docker, 100 VMs to Active", "at most 1.15 x engine, 8 at a time"},
	{"among-fake", "new VM among 10,000 fake ones, p95", "at most 1.2 x alone"},
	{"among-docker", "new VM among 100 docker ones, p95", "at most 1.2 x alone"},
	{"writes", "API writes to VMs per action", "create 2, delete 1, power 1, restart 2, 1 more for a step over 100 ms"},
	{"rest-writes", "API writes to VMs at rest", "0"},
	{"memory", "memory with 10,000 VMs", "at most 1.3 x cache"},
	{"rest-cpu", "CPU at rest, 10,000 VMs", "at most 1 % of one core"},
	{"delete-docker", "delete 100 docker VMs", "at most 1.2 x stop and remove by the API"},
	{"burst", "memory of drover up five minutes after 10,000 VMs are gone", "at most 600 MB"},
	{"slow", "a quick engine beside a slow one", "moves by at most 10 %"},
}

// report is the result of all measurements.
type report struct {
	Machine bench.Machine `json:"machine"`
	Options options       `json:"options"`
	Rows    []*row        `json:"figures"`
}

// row is a figure, with its comparison.
type row struct {
	Suite  string    `json:"suite"`
	What   string    `json:"what"`
	VMs    int       `json:"vms"`
	Unit   string    `json:"unit"`
	Ours   measured  `json:"ours"`
	Beside string    `json:"beside,omitempty"` // what floor is
	Floor  *measured `json:"floor,omitempty"`
	Ratio  *measured `json:"ratio,omitempty"` // of each turn
	Aim    string    `json:"aim,omitempty"`
	Met    *bool     `json:"met,omitempty"`
}

// measured is a figure that was measured several times.
type measured struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Runs   []float64 `json:"runs"`
}

func newMeasured(runs []float64) measured {
	return measured{
		Median: bench.Median(runs), Min: bench.Percentile(runs, 0), Max: bench.Percentile(runs, 100), Runs: runs,
	}
}

func newReport(o options) *report { return &report{Machine: bench.ThisMachine(), Options: o} }

// loadRows takes the rows of an earlier run over, until they are measured again.
func (r *report) loadRows(path string) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	old := &report{}
	if err == nil {
		err = json.Unmarshal(content, old)
	}
	r.Rows = old.Rows
	return err
}

// addRow adds a row, in place of one of an earlier run.
func (r *report) addRow(suite, what string, vms int, unit string, ours ...float64) *row {
	fresh := &row{Suite: suite, What: what, VMs: vms, Unit: unit, Ours: newMeasured(ours)}
	same := func(old *row) bool { return old.Suite == suite && old.What == what && old.VMs == vms }
	if at := slices.IndexFunc(r.Rows, same); at >= 0 {
		r.Rows[at] = fresh
	} else {
		r.Rows = append(r.Rows, fresh)
	}
	bench.Logf("%s, %d VMs: %s %s", what, vms, fresh.Ours, unit)
	return fresh
}

// findFigure returns a row's figures, none if it was not measured.
func (r *report) findFigure(suite, what string, vms int) (measured, bool) {
	for _, row := range r.Rows {
		if row.Suite == suite && row.What == what && row.VMs == vms {
			return row.Ours, true
		}
	}
	return measured{}, false
}

// compareWith compares the row with what was measured in the same turns.
func (r *row) compareWith(name string, floor ...float64) *row {
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
		bench.Logf("  %s %s %s, ratio %s", name, f, r.Unit, ratio)
	}
	return r
}

// ratioAtMost lets the row decide an aim by its ratio's median.
func (r *row) ratioAtMost(aim string, limit float64) {
	if r.Ratio != nil {
		r.Aim, r.Met = aim, new(r.Ratio.Median <= limit)
	}
}

// atMost lets the row decide an aim by its own median.
func (r *row) atMost(aim string, limit float64) { r.Aim, r.Met = aim, new(r.Ours.Median <= limit) }

func (m measured) String() string {
	if len(m.Runs) == 1 {
		return formatNumber(m.Median)
	}
	return fmt.Sprintf("%s (%s to %s)", formatNumber(m.Median), formatNumber(m.Min), formatNumber(m.Max))
}

// formatNumber shows three of them, or all before the point.
func formatNumber(f float64) string {
	switch {
	case f >= 100 || f == float64(int64(f)):
		return strconv.FormatFloat(f, 'f', 0, 64)
	case f >= 10:
		return strconv.FormatFloat(f, 'f', 1, 64)
	case f < 0.1:
		return strconv.FormatFloat(f, 'g', 2, 64)
	}
	return strconv.FormatFloat(f, 'f', 2, 64)
}

// printReport writes the report in readable form.
func (r *report) printReport(w io.Writer) error {
	fmt.Fprintf(w, "\n%s\n\nMedians, and in brackets the range.\n\n", r.Machine)
	t := bench.NewTable("suite", "what", "VMs", "Drover", "unit", "beside", "takes", "ratio", "aim")
	for _, row := range r.Rows {
		t.Row(row.tableCells()...)
	}
	fmt.Fprintln(w, t)
	return r.printAims(w)
}

func (r *row) tableCells() []string {
	cells := []string{r.Suite, r.What, strconv.Itoa(r.VMs), r.Ours.String(), r.Unit, r.Beside, "", "", ""}
	if r.Floor != nil {
		cells[6] = r.Floor.String()
	}
	if r.Ratio != nil {
		cells[7] = r.Ratio.String()
	}
	if r.Met != nil {
		cells[8] = bench.Verdict(*r.Met)
	}
	return cells
}

func (r *report) printAims(w io.Writer) error {
	t := bench.NewTable("what", "aim", "measured", "verdict")
	for _, a := range aims {
		figure, met, found := r.evaluateAim(a.key)
		verdict := "not measured in this run"
		if found {
			verdict = bench.Verdict(met)
		}
		t.Row(a.what, a.limit, figure, verdict)
	}
	_, err := fmt.Fprint(w, t)
	return err
}

// evaluateAim combines an aim's rows: all must meet it. If there are several, it names
// those that miss.
func (r *report) evaluateAim(aim string) (figure string, met, found bool) {
	var figures, missed []string
	for _, row := range r.Rows {
		if row.Aim != aim || row.Met == nil {
			continue
		}
		f := row.Ours.String() + " " + row.Unit
		if row.Ratio != nil {
			f = row.Ratio.String()
		}
		figures = append(figures, f)
		if !*row.Met {
			missed = append(missed, fmt.Sprintf("%s, %d VMs: %s", row.What, row.VMs, f))
		}
	}
	switch {
	case len(figures) == 0:
		return "", false, false
	case len(missed) > 0:
		return strings.Join(missed, "; "), false, true
	case len(figures) > 1:
		return fmt.Sprintf("all %d figures", len(figures)), true, true
	}
	return figures[0], true, true
}

// toMilliseconds of a duration.
func toMilliseconds(d time.Duration) float64 { return bench.Milliseconds(d) }

// toMegabytes of bytes.
func toMegabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
