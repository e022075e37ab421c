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

	"cloudnative.tw/drover/test/assert"
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
		got := Line(text)
		assert.True(t, got == want, "%q is %q, want %q", text, got, want)
	}
}

// TestLineBidirectional checks every character that changes the direction of writing.
func TestLineBidirectional(t *testing.T) {
	for _, span := range [][2]rune{{0x061c, 0x061c}, {0x200e, 0x200f}, {0x202a, 0x202e}, {0x2066, 0x2069}} {
		for r := span[0]; r <= span[1]; r++ {
			got := Line("a" + string(r) + "b")
			assert.True(t, got == "a?b", "with %U it is %q", r, got)
		}
	}
}

// TestWriter checks that a writer keeps lines, and obeys nothing else, and that the output behind it
// can be had.
func TestWriter(t *testing.T) {
	var raw bytes.Buffer
	w := NewWriter(&raw)
	text := []byte("a\x1b[31m\tb\r\n\nc\u202e\n")
	n, err := w.Write(text)
	assert.True(t, n == len(text) && err == nil, "written are %d, %v", n, err)
	got := raw.String()
	assert.True(t, got == "a?[31m b \n\nc?\n", "got %q", got)
	assert.True(t, Raw(w) == &raw && Raw(&raw) == &raw, "the output behind it is another")
}

// TestJSON checks that a terminal finds nothing to obey in JSON, and a program the same texts.
func TestJSON(t *testing.T) {
	want := "<größe>\t\x1b[31m\u009b31m\x7f\u202e\u00a0\u2028\U000e0001 ✓ \U0001f600"
	var out bytes.Buffer
	assert.NoError(t, JSON(&out, []string{want}))
	for line := range strings.Lines(out.String()) {
		plain := strings.TrimSuffix(line, "\n")
		assert.True(t, Line(plain) == plain, "it prints %q", line)
	}
	var got []string
	err := json.Unmarshal(out.Bytes(), &got)
	assert.True(t, err == nil && len(got) == 1 && got[0] == want, "a program reads %q, %v; want %q", got, err, want)
	assert.Contains(t, "plain characters are escaped", out.String(), "<größe>")
}

// TestShellWord checks that a shell reads each word as it is.
func TestShellWord(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"/var/lib/drover": "/var/lib/drover", "/home/ann's data/x": `'/home/ann'\''s data/x'`, "": "''", "a;b": "'a;b'", "~": "'~'",
	} {
		got := ShellWord(word)
		assert.True(t, got == want, "%q: got %s, want %s", word, got, want)
		out, err := exec.CommandContext(t.Context(), "sh", "-c", "printf %s "+ShellWord(word)).Output()
		assert.True(t, err == nil && string(out) == word, "%q: the shell has %q, %v", word, out, err)
	}
}

func TestWrap(t *testing.T) {
	for _, width := range []int{0, 1, 5, 12, 100} {
		lines := Wrap("the image could not be fetched", width)
		got := strings.Join(lines, " ")
		assert.True(t, got == "the image could not be fetched", "width %d: %q", width, got)
		for _, line := range lines {
			assert.True(t, width <= 0 || utf8.RuneCountInString(line) <= width || !strings.Contains(line, " "), "width %d: the line %q", width, line)
		}
	}
	got := Wrap("", 10)
	assert.True(t, len(got) == 1 && got[0] == "", "an empty text is %q", got)
}
