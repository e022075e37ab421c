// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"strings"
	"testing"

	"cloudnative.tw/drover/test/assert"
)

func TestTableFits(t *testing.T) {
	all := &Table{Columns: []Column{{Name: "NAME"}, {Name: "STATE", DropOrder: 1}, {Name: "N", AlignRight: true}, {Name: "LONG", DropOrder: 2}}}
	all.AddRow(Cell{Text: "web"}, Cell{Text: "Active", Style: Green}, Cell{Text: "12345"}, Cell{Text: strings.Repeat("x", 30)})
	all.AddRow(Cell{Text: "database"}, Cell{Text: "Off"}, Cell{Text: "1"}, Cell{Text: "-"})
	tests := map[int][]string{
		0: {
			"NAME       STATE        N   LONG",
			"web        Active   12345   " + strings.Repeat("x", 30),
			"database   Off          1   -",
		},
		40: {"NAME       STATE        N", "web        Active   12345", "database   Off          1"},
		20: {"NAME           N", "web        12345", "database       1"},
		3:  {"NAME           N", "web        12345", "database       1"}, // what identifies a row stays
	}
	for width, want := range tests {
		got := strings.Join(all.Lines(Terminal{Width: width}), "")
		assert.True(t, got == strings.Join(want, "\n")+"\n", "width %d: got\n%swant\n%s", width, got, strings.Join(want, "\n"))
	}
}

func TestTableColors(t *testing.T) {
	one := &Table{Columns: []Column{{Name: "A"}, {Name: "B"}}, NoHeaders: true}
	one.AddRow(Cell{Text: "x", Style: Red}, Cell{Text: "y"})
	got := one.Lines(Terminal{HasColors: true})[0]
	assert.True(t, got == "\x1b[31mx\x1b[0m   y\n", "got %q", got)
	got = one.Lines(Terminal{})[0]
	assert.True(t, got == "x   y\n", "got %q without colors", got)
}

func TestTableCleansCells(t *testing.T) {
	one := &Table{Columns: []Column{{Name: "A"}}, NoHeaders: true}
	one.AddRow(Cell{Text: "\x1b]0;owned\x07x\ny\u202e"})
	got := one.Lines(Terminal{})[0]
	assert.True(t, got == "?]0;owned?x y?\n", "got %q", got)
}

func TestShorten(t *testing.T) {
	for _, one := range []struct {
		text  string
		width int
		want  string
	}{{"abcdef", 4, "abc…"}, {"abcd", 4, "abcd"}, {"äöüß", 3, "äö…"}, {"abc", 0, "abc"}, {"abc", -3, "abc"}, {"abc", 1, "…"}} {
		got := ShortenText(one.text, one.width)
		assert.True(t, got == one.want, "%q in %d is %q, want %q", one.text, one.width, got, one.want)
	}
}
