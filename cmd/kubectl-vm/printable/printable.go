// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable makes text from elsewhere fit for a terminal and a log. Names, messages
// and answers may come from other users, from guests and from engines.
package printable

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf16"
)

// Line returns a text as one line, in which a terminal finds nothing to obey and which shows
// what it has in the order in which it has it. Every space becomes a plain one. Question
// marks replace control characters, such as the beginning of an escape sequence, and
// characters that no one sees, such as those that change the direction of writing.
func Line(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return '?'
	}, text)
}

// Text is Line for each line of a text.
func Text(text string) string {
	lines := strings.Split(text, "\n")
	for n, line := range lines {
		lines[n] = Line(line)
	}
	return strings.Join(lines, "\n")
}

// JSON prints a value as JSON. What Line replaces in texts is escaped, so that nothing is lost: encoding/json
// escapes neither C1 control characters nor those that change the direction of writing.
func JSON(out io.Writer, value any) error {
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	var text strings.Builder
	for _, r := range plain.String() {
		if r == '\n' || unicode.IsPrint(r) {
			text.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&text, "\\u%04x", unit)
		}
	}
	_, err := io.WriteString(out, text.String())
	return err
}

// writer is an output that passes everything through Text.
type writer struct{ raw io.Writer }

// NewWriter returns an output that is fit for a terminal whatever is written to it.
func NewWriter(out io.Writer) io.Writer { return writer{out} }

// Raw returns the output behind a writer of NewWriter, for text that has colors. It returns any other output itself.
func Raw(out io.Writer) io.Writer {
	if w, ok := out.(writer); ok {
		return w.raw
	}
	return out
}

// Write implements io.Writer. No character may be split between two writes.
func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.raw, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Wrap breaks a text into lines of at most width characters, at spaces. A word that is longer
// gets a separate line. Width 0 means no limit.
func Wrap(text string, width int) []string {
	var lines []string
	line, length := "", 0
	for word := range strings.FieldsSeq(text) {
		size := len([]rune(word))
		if width > 0 && length > 0 && length+1+size > width {
			lines, line, length = append(lines, line), "", 0
		}
		if length > 0 {
			line, length = line+" ", length+1
		}
		line, length = line+word, length+size
	}
	return append(lines, line)
}

// plainWord matches what no shell interprets.
var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// ShellWord returns a word as a person can paste it into a shell.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
