// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package printable

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestLine(t *testing.T) {
	tests := map[string]string{
		"":                               "",
		"plain text, 34% (12.3/36.1 MB)": "plain text, 34% (12.3/36.1 MB)",
		"größe ✓ 漢字":                     "größe ✓ 漢字",
		"\x1b]0;title\x07 \x1b[31mred":   "?]0;title? ?[31mred",
		"\u009b31m\x7f\x00":              "?31m??",
		"a\r\nb\tc\u0085d\u2028e":        "a  b c d e",
		"non-breaking\u00a0space":        "non-breaking space",
		"zero\u200bwidth\ufeff":          "zero?width?",
		"\xff\xfe":                       "\ufffd\ufffd",
	}
	for text, want := range tests {
		if got := Line(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}

// TestLineBidirectional checks every character that changes the direction of writing.
func TestLineBidirectional(t *testing.T) {
	for _, span := range [][2]rune{{0x061c, 0x061c}, {0x200e, 0x200f}, {0x202a, 0x202e}, {0x2066, 0x2069}} {
		for r := span[0]; r <= span[1]; r++ {
			if got := Line("a" + string(r) + "b"); got != "a?b" {
				t.Errorf("with %U it is %q", r, got)
			}
		}
	}
}

// TestWriter checks that a writer keeps lines, and obeys nothing else, and that the output behind it
// can be had.
func TestWriter(t *testing.T) {
	var raw bytes.Buffer
	w := NewWriter(&raw)
	text := []byte("a\x1b[31m\tb\r\n\nc\u202e\n")
	if n, err := w.Write(text); n != len(text) || err != nil {
		t.Errorf("written are %d, %v", n, err)
	}
	if got := raw.String(); got != "a?[31m b \n\nc?\n" {
		t.Errorf("got %q", got)
	}
	if Raw(w) != &raw || Raw(&raw) != &raw {
		t.Error("the output behind it is another")
	}
}

// TestJSON checks that a terminal finds nothing to obey in JSON, and a program the same texts.
func TestJSON(t *testing.T) {
	want := "<größe>\t\x1b[31m\u009b31m\x7f\u202e\u00a0\u2028\U000e0001 ✓ \U0001f600"
	var out bytes.Buffer
	if err := JSON(&out, []string{want}); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if plain := strings.TrimSuffix(line, "\n"); Line(plain) != plain {
			t.Errorf("it prints %q", line)
		}
	}
	var got []string
	if err := json.Unmarshal(out.Bytes(), &got); err != nil || len(got) != 1 || got[0] != want {
		t.Errorf("a program reads %q, %v; want %q", got, err, want)
	}
	if !strings.Contains(out.String(), "<größe>") {
		t.Errorf("plain characters are escaped: %s", out.String())
	}
}

// TestShellWord checks that a shell reads each word as it is.
func TestShellWord(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"/var/lib/drover": "/var/lib/drover", "/home/ann's data/x": `'/home/ann'\''s data/x'`, "": "''", "a;b": "'a;b'", "~": "'~'",
	} {
		if got := ShellWord(word); got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+ShellWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q: the shell has %q, %v", word, out, err)
		}
	}
}

func TestWrap(t *testing.T) {
	for _, width := range []int{0, 1, 5, 12, 100} {
		lines := Wrap("the image could not be fetched", width)
		if got := strings.Join(lines, " "); got != "the image could not be fetched" {
			t.Errorf("width %d: %q", width, got)
		}
		for _, line := range lines {
			if width > 0 && utf8.RuneCountInString(line) > width && strings.Contains(line, " ") {
				t.Errorf("width %d: the line %q", width, line)
			}
		}
	}
	if got := Wrap("", 10); len(got) != 1 || got[0] != "" {
		t.Errorf("an empty text is %q", got)
	}
}
