// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"regexp"
	"strings"
	"testing"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// TestDocsOfFields checks that the table of docs/drivers.md has every driver as a column,
// and says of every field what the driver declares.
func TestDocsOfFields(t *testing.T) {
	rows := fieldTable(t)
	names := strings.Fields(strings.ReplaceAll(rows[0], "|", " "))[1:]
	for column, name := range names {
		d, err := openDriver(name, testOptionsIn(t.TempDir()))
		assert.NoError(t, err)
		declarer, _ := driver.As[driver.FieldDeclarer](d)
		for field, support := range declarer.SupportedFields() {
			cell := cellOf(rows, field, column+1)
			assert.True(t, strings.Contains(cell, string(support)), "driver %s declares %s as %q, and docs/drivers.md says %q", name, field, support, cell)
		}
	}
	assert.True(t, len(names) == len(Names()), "docs/drivers.md has columns for %v, and the drivers are %v", names, Names())
}

func testOptionsIn(dir string) Options {
	o := options()
	for _, own := range o.Settings {
		if own.DataDir() != nil {
			*own.DataDir() = dir
		}
	}
	return o
}

// fieldTable returns the rows of the first table, without the line below its head.
func fieldTable(t *testing.T) []string {
	t.Helper()
	page := framework.ReadFile(t, "../../../docs/drivers.md")
	_, table, _ := strings.Cut(page, "\n| field")
	table, _, _ = strings.Cut("| field"+table, "\n\n")
	rows := strings.Split(table, "\n")
	return append(rows[:1], rows[2:]...)
}

var quoted = regexp.MustCompile("`[^`]+`")

// cellOf returns the cell of the row that names a field, or names it most exactly. A name
// that begins with a dot continues the one before it, and a list's name ends in [].
func cellOf(rows []string, field string, column int) string {
	cell, best := "no row has it", 0
	for _, row := range rows[1:] {
		cells := strings.Split(strings.Trim(row, "|"), "|")
		before := ""
		for _, name := range quoted.FindAllString(cells[0], -1) {
			name = strings.ReplaceAll(strings.Trim(name, "`"), "[]", "")
			if strings.HasPrefix(name, ".") {
				name = before[:strings.LastIndex(before, ".")] + name
			}
			before = name
			if (field == name || strings.HasPrefix(field, name+".")) && len(name) > best {
				cell, best = strings.TrimSpace(cells[column]), len(name)
			}
		}
	}
	return cell
}
