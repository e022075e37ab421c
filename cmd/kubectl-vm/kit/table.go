// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// ColumnGap is the number of spaces between two columns, as in kubectl.
const ColumnGap = 3

// Column is a column of a table.
type Column struct {
	Name       string
	AlignRight bool
	// DropOrder is the order in which columns are left out if the terminal is too narrow: the
	// column with the highest number first. A column with 0 is never left out.
	DropOrder int
}

// Cell is a cell of a table.
type Cell struct {
	Text  string
	Style Style
}

// Table is text in columns, such as the output of list and top.
type Table struct {
	Columns   []Column
	rows      [][]Cell
	NoHeaders bool
}

// AddRow adds a row, with a cell for each column.
func (t *Table) AddRow(cells ...Cell) {
	for i := range cells {
		cells[i].Text = printable.Line(cells[i].Text)
	}
	t.rows = append(t.rows, cells)
}

// Print prints the table. It leaves out columns that do not fit on the screen.
func (t *Table) Print(w io.Writer, s Terminal) error {
	_, err := io.WriteString(w, strings.Join(t.Lines(s), ""))
	return err
}

// Lines returns the lines of the table, as Print prints them.
func (t *Table) Lines(s Terminal) []string {
	widths := t.Widths()
	shown := t.fitColumns(widths, s.Width)
	lines := make([]string, 0, len(t.rows)+1)
	if !t.NoHeaders {
		header := make([]Cell, len(t.Columns))
		for i, c := range t.Columns {
			header[i] = Cell{Text: c.Name}
		}
		lines = append(lines, t.formatRow(header, shown, widths, s))
	}
	for _, row := range t.rows {
		lines = append(lines, t.formatRow(row, shown, widths, s))
	}
	return lines
}

// Widths returns the width of each column, in characters.
func (t *Table) Widths() []int {
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = len(c.Name)
	}
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.Text))
		}
	}
	return widths
}

// fitColumns returns the indices of the columns that fit into a width, where 0 means no limit.
func (t *Table) fitColumns(widths []int, width int) []int {
	shown := make([]int, len(t.Columns))
	total := -ColumnGap
	for i := range t.Columns {
		shown[i] = i
		total += widths[i] + ColumnGap
	}
	for width > 0 && total > width {
		next := slices.MaxFunc(shown, func(a, b int) int { return t.Columns[a].DropOrder - t.Columns[b].DropOrder })
		if t.Columns[next].DropOrder == 0 {
			return shown
		}
		total -= widths[next] + ColumnGap
		shown = slices.DeleteFunc(shown, func(i int) bool { return i == next })
	}
	return shown
}

func (t *Table) formatRow(row []Cell, shown, widths []int, s Terminal) string {
	var b strings.Builder
	gap := 0
	for n, i := range shown {
		pad := widths[i] - utf8.RuneCountInString(row[i].Text)
		if t.Columns[i].AlignRight {
			gap, pad = gap+pad, 0
		}
		b.WriteString(strings.Repeat(" ", gap))
		b.WriteString(s.Paint(row[i].Text, row[i].Style))
		gap = pad + ColumnGap
		if n == len(shown)-1 {
			b.WriteByte('\n')
		}
	}
	return b.String()
}
