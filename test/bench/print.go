// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

// Table is rows of cells under a header, printed in Markdown that is also readable
// on a terminal.
type Table struct{ rows [][]string }

// NewTable begins a table.
func NewTable(header ...string) *Table { return &Table{rows: [][]string{header}} }

// Row adds a row; missing cells are empty.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// String is the table, with aligned columns.
func (t *Table) String() string {
	width := len(t.rows[0])
	rule := slices.Repeat([]string{"---"}, width)
	var text strings.Builder
	tab := tabwriter.NewWriter(&text, 0, 0, 1, ' ', 0)
	for _, row := range slices.Concat([][]string{t.rows[0], rule}, t.rows[1:]) {
		cells := append(slices.Clone(row), make([]string, width-len(row))...)
		_, _ = fmt.Fprintf(tab, "| %s\t|\n", strings.Join(cells, "\t| "))
	}
	_ = tab.Flush()
	return text.String()
}

// WriteJSON writes a file, and creates its folder if needed.
func WriteJSON(path string, content any) error {
	text, err := json.MarshalIndent(content, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
