// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package findings

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Style says how findings are printed.
type Style struct {
	// Width is the width of the terminal, in characters.
	Width int
	// Color is set if the output may have colors.
	Color bool
}

const (
	// minWidth is the least width of the column of texts. A narrower column would be hard to read.
	minWidth = 30
	// indent is the indentation of the lines below a heading.
	indent = "  "
	// levelWidth is the width of the column of levels.
	levelWidth = len(LevelWarning)
)

// bold is the ANSI code of bold text.
const bold = "1"

// colors are the ANSI codes of the levels.
var colors = map[Level]string{LevelOK: "32", LevelNote: "36", LevelWarning: "33", LevelError: "31;1"}

// paintText applies an ANSI code to a text, if the style has colors.
func (s Style) paintText(text, code string) string {
	if !s.Color || code == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

// Print prints findings under the headings of their groups, and a last line with their
// numbers. It does not wrap commands, so that users can copy them.
func Print(out io.Writer, all []Finding, s Style) error {
	var text bytes.Buffer
	s.printRows(&text, all)
	fmt.Fprintf(&text, "\n%s\n", Summarize(all))
	_, err := out.Write(text.Bytes())
	return err
}

// PrintRows prints findings like Print, without the last line.
func PrintRows(out io.Writer, all []Finding, s Style) error {
	var text bytes.Buffer
	s.printRows(&text, all)
	_, err := out.Write(text.Bytes())
	return err
}

func (s Style) printRows(text *bytes.Buffer, all []Finding) {
	names := 0
	for _, f := range all {
		names = max(names, utf8.RuneCountInString(f.Name))
	}
	group, name := "", ""
	for _, f := range all {
		f.Name = printable.Line(f.Name)
		if f.Group != group {
			if group != "" {
				text.WriteByte('\n')
			}
			fmt.Fprintf(text, "%s\n", s.paintText(printable.Line(f.Group), bold))
			name = ""
		}
		if f.Name == name && f.Group == group {
			f.Name = ""
		} else {
			name = f.Name
		}
		group = f.Group
		s.printFinding(text, f, names)
	}
}

func (s Style) printFinding(text *bytes.Buffer, f Finding, names int) {
	margin := indent + strings.Repeat(" ", levelWidth+names+4)
	width := max(s.Width-len(margin), minWidth)
	level := s.paintText(fmt.Sprintf("%-*s", levelWidth, f.Level), colors[f.Level])
	first, weight := fmt.Sprintf("%s%s  %-*s  ", indent, level, names, f.Name), ""
	if f.Level == LevelWarning || f.Level == LevelError {
		weight = bold
	}
	for i, line := range wrapParagraphs(f.Observed, width) {
		if i > 0 {
			first = margin
		}
		fmt.Fprintf(text, "%s%s\n", first, s.paintText(line, weight))
	}
	for _, line := range wrapParagraphs(f.Meaning, width) {
		fmt.Fprintf(text, "%s%s\n", margin, line)
	}
	if f.Fix != "" {
		for _, line := range wrapParagraphs("Fix: "+f.Fix, width) {
			fmt.Fprintf(text, "%s%s\n", margin, line)
		}
	}
	if f.Command != "" {
		fmt.Fprintf(text, "%s$ %s\n", margin, printable.Line(f.Command))
	}
}

// wrapParagraphs breaks each line of a text into lines of at most width characters.
func wrapParagraphs(text string, width int) []string {
	var lines []string
	for paragraph := range strings.Lines(text) {
		if paragraph = printable.Line(paragraph); strings.TrimSpace(paragraph) != "" {
			lines = append(lines, printable.Wrap(paragraph, width)...)
		}
	}
	return lines
}

// Summarize returns how many findings each level has, the worst level first.
func Summarize(all []Finding) string {
	counts := map[Level]int{}
	for _, f := range all {
		counts[f.Level]++
	}
	var parts []string
	for _, l := range []Level{LevelError, LevelWarning, LevelNote} {
		if n := counts[l]; n == 1 {
			parts = append(parts, "1 "+string(l))
		} else if n > 1 {
			parts = append(parts, fmt.Sprintf("%d %ss", n, l))
		}
	}
	if len(parts) == 0 {
		return fmt.Sprintf("All %d checks are ok.", counts[LevelOK])
	}
	return fmt.Sprintf("%s; %d ok.", strings.Join(parts, ", "), counts[LevelOK])
}
