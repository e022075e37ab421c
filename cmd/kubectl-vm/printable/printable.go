// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package printable makes text safe for a terminal and a log. Names, messages and answers may
// come from other users, from guests and from engines.
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

// Line returns a text as one line that a terminal shows as it is. Every white space becomes a
// space. Question marks replace control characters, such as the beginning of an escape
// sequence, and invisible characters, such as those that change the direction of writing.
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

// Text applies Line to each line of a text.
func Text(text string) string {
	lines := strings.Split(text, "\n")
	for n, line := range lines {
		lines[n] = Line(line)
	}
	return strings.Join(lines, "\n")
}

// JSON prints a value as JSON. It escapes the characters that Line replaces, so that no text is lost. Package json
// escapes neither C1 control characters nor characters that change the direction of writing.
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

// textWriter is a writer that applies Text to everything.
type textWriter struct{ raw io.Writer }

// NewWriter returns a writer to out that makes every text safe for a terminal.
func NewWriter(out io.Writer) io.Writer { return textWriter{out} }

// Raw returns the output of a writer of NewWriter, for text with colors. It returns any other output unchanged.
func Raw(out io.Writer) io.Writer {
	if w, ok := out.(textWriter); ok {
		return w.raw
	}
	return out
}

// Write implements io.Writer. A character must not be split between two writes.
func (w textWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.raw, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Wrap breaks a text at spaces into lines of at most width characters. A longer word gets a
// separate line. Width 0 means no limit.
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

// plainWord matches words that no shell interprets.
var plainWord = regexp.MustCompile(`^[\w@%+=:,./-]+$`)

// ShellWord quotes a word for a shell, if necessary.
func ShellWord(word string) string {
	if plainWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}
