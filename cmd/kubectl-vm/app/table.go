// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// columnGap is the space between two columns, as in kubectl.
const columnGap = 3

// column is a column of a table.
type column struct {
	name  string
	right bool // whether it is aligned to the right
	// expendable columns are left out where the terminal is too narrow, those with the
	// highest number first.
	expendable int
}

// cell is a text of a table.
type cell struct {
	text  string
	style style
}

// table is the output of list and top.
type table struct {
	columns   []column
	rows      [][]cell
	noHeaders bool
}

// addRow adds a row, with a cell for each column.
func (t *table) addRow(cells ...cell) {
	for i := range cells {
		cells[i].text = printable.Line(cells[i].text)
	}
	t.rows = append(t.rows, cells)
}

// write prints the table, as narrow as the screen needs it.
func (t *table) write(w io.Writer, s screen) error {
	_, err := io.WriteString(w, strings.Join(t.lines(s), ""))
	return err
}

// lines returns the lines of the table.
func (t *table) lines(s screen) []string {
	widths := t.widths()
	shown := t.fitColumns(widths, s.width)
	lines := make([]string, 0, len(t.rows)+1)
	if !t.noHeaders {
		header := make([]cell, len(t.columns))
		for i, c := range t.columns {
			header[i] = cell{text: c.name}
		}
		lines = append(lines, t.line(header, shown, widths, s))
	}
	for _, row := range t.rows {
		lines = append(lines, t.line(row, shown, widths, s))
	}
	return lines
}

func (t *table) widths() []int {
	widths := make([]int, len(t.columns))
	for i, c := range t.columns {
		widths[i] = len(c.name)
	}
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	return widths
}

// fitColumns returns the columns that are shown.
func (t *table) fitColumns(widths []int, width int) []int {
	shown := make([]int, len(t.columns))
	total := -columnGap
	for i := range t.columns {
		shown[i] = i
		total += widths[i] + columnGap
	}
	for width > 0 && total > width {
		least := slices.MaxFunc(shown, func(a, b int) int { return t.columns[a].expendable - t.columns[b].expendable })
		if t.columns[least].expendable == 0 {
			return shown
		}
		total -= widths[least] + columnGap
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == least })
	}
	return shown
}

func (t *table) line(row []cell, shown, widths []int, s screen) string {
	var b strings.Builder
	gap := 0
	for n, i := range shown {
		pad := widths[i] - utf8.RuneCountInString(row[i].text)
		if t.columns[i].right {
			gap, pad = gap+pad, 0
		}
		b.WriteString(strings.Repeat(" ", gap))
		b.WriteString(s.paintText(row[i].text, row[i].style))
		gap = pad + columnGap
		if n == len(shown)-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
