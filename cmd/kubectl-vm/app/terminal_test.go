// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestTableFits(t *testing.T) {
	all := &table{columns: []column{{name: "NAME"}, {name: "STATE", expendable: 1}, {name: "N", right: true}, {name: "LONG", expendable: 2}}}
	all.addRow(cell{text: "web"}, cell{text: "Active", style: green}, cell{text: "12345"}, cell{text: strings.Repeat("x", 30)})
	all.addRow(cell{text: "database"}, cell{text: "Off"}, cell{text: "1"}, cell{text: "-"})
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
		got := strings.Join(all.lines(screen{width: width}), "")
		if got != strings.Join(want, "\n")+"\n" {
			t.Errorf("width %d: got\n%swant\n%s", width, got, strings.Join(want, "\n"))
		}
	}
}

func TestTableColors(t *testing.T) {
	one := &table{columns: []column{{name: "A"}, {name: "B"}}, noHeaders: true}
	one.addRow(cell{text: "x", style: red}, cell{text: "y"})
	if got := one.lines(screen{color: true})[0]; got != "\x1b[31mx\x1b[0m   y\n" {
		t.Errorf("got %q", got)
	}
	if got := one.lines(screen{})[0]; got != "x   y\n" {
		t.Errorf("got %q without colors", got)
	}
}

func TestTableCleansCells(t *testing.T) {
	one := &table{columns: []column{{name: "A"}}, noHeaders: true}
	one.addRow(cell{text: "\x1b]0;owned\x07x\ny\u202e"})
	if got := one.lines(screen{})[0]; got != "?]0;owned?x y?\n" {
		t.Errorf("got %q", got)
	}
}

func TestShorten(t *testing.T) {
	for _, one := range []struct {
		text  string
		width int
		want  string
	}{{"abcdef", 4, "abc…"}, {"abcd", 4, "abcd"}, {"äöüß", 3, "äö…"}, {"abc", 0, "abc"}, {"abc", -3, "abc"}, {"abc", 1, "…"}} {
		if got := shortenText(one.text, one.width); got != one.want {
			t.Errorf("%q in %d is %q, want %q", one.text, one.width, got, one.want)
		}
	}
}

func TestBytesText(t *testing.T) {
	tests := map[string]map[float64]string{
		"4G":  {0: "0", 999: "999", 1000: "1.00k", 12_345_678: "12.3M", 999_600_000: "1.00G", 4e9: "4.00G", 123.4e12: "123T", 5e18: "5000P"},
		"4Gi": {1024: "1.00Ki", 1 << 30: "1.00Gi", 1.5 * (1 << 20): "1.50Mi", 1000: "0.98Ki"},
	}
	for like, values := range tests {
		for bytes, want := range values {
			if got := bytesText(bytes, resource.MustParse(like)); got != want {
				t.Errorf("%g beside %s is %s, want %s", bytes, like, got, want)
			}
		}
	}
}

// TestEventsOfOddReasons checks that a reason, which anyone may write, is counted in characters and
// obeyed by no terminal.
func TestEventsOfOddReasons(t *testing.T) {
	events := []corev1.Event{{Reason: "äöüäöü", Message: "one"}, {Reason: "\x1b[31mé", Message: "two"}}
	var b strings.Builder
	writeEvents(&b, screen{width: 40}, events, now)
	if want := "\nLast events:\n  -   äöüäöü   one\n  -   ?[31mé   two\n"; b.String() != want {
		t.Errorf("got %q, want %q", b.String(), want)
	}
}
