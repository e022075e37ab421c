// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
)

// Table is rows of cells under a header, printed in Markdown that reads as well
// on a terminal.
type Table struct{ rows [][]string }

// NewTable begins a table.
func NewTable(header ...string) *Table { return &Table{rows: [][]string{header}} }

// Row adds a row; missing cells are empty.
func (t *Table) Row(cells ...string) { t.rows = append(t.rows, cells) }

// Print writes the table.
func (t *Table) Print(w io.Writer) error {
	width := len(t.rows[0])
	rule := make([]string, width)
	for n := range rule {
		rule[n] = "---"
	}
	tab := tabwriter.NewWriter(w, 0, 0, 1, ' ', 0)
	for n, row := range append([][]string{t.rows[0], rule}, t.rows[1:]...) {
		cells := append(append([]string{}, row...), make([]string, max(0, width-len(row)))...)
		if _, err := fmt.Fprintf(tab, "| %s\t|\n", strings.Join(cells, "\t| ")); err != nil {
			return fmt.Errorf("row %d of the table: %w", n, err)
		}
	}
	return tab.Flush()
}

// Show prints a duration in milliseconds, with as many digits as tell
// something.
func Show(d time.Duration) string {
	if ms := Milliseconds(d); ms > -100 && ms < 100 {
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", Milliseconds(d))
}

// WriteJSON writes a file, and its folder if need be.
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
