// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// Terminal describes the terminal that an output stream leads to, if it is one.
type Terminal struct {
	// IsTerminal is set if the stream is a terminal.
	IsTerminal bool
	// Width is the width of the terminal in columns, 0 without a terminal.
	Width int
	// HasColors is set if the output may have colors.
	HasColors bool
}

// TerminalOf returns the Terminal of a stream. NO_COLOR and TERM=dumb switch colors off.
func TerminalOf(w io.Writer) Terminal {
	file := printable.File(w)
	if file == nil || !term.IsTerminal(int(file.Fd())) {
		return Terminal{}
	}
	s := Terminal{IsTerminal: true, Width: 80, HasColors: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
		s.Width = width
	}
	return s
}

// Style is the ANSI escape sequence that begins a style of text.
type Style string

// reset ends a style.
const (
	plain  Style = ""
	Bold   Style = "\x1b[1m"
	Faint  Style = "\x1b[2m"
	Red    Style = "\x1b[31m"
	Green  Style = "\x1b[32m"
	Yellow Style = "\x1b[33m"
	reset        = "\x1b[0m"
)

// Paint returns text in a style.
func (s Terminal) Paint(text string, style Style) string {
	if !s.HasColors || style == plain || text == "" {
		return text
	}
	return string(style) + text + reset
}

// ShortenText truncates text to a width in characters.
func ShortenText(text string, width int) string {
	runes := []rune(text)
	if width <= 0 || len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}

// PrintWarning prints a warning as kubectl does.
func (o *Options) PrintWarning(text string) {
	s := TerminalOf(o.ErrOut)
	_, _ = fmt.Fprintf(o.ErrOut, "%s %s\n", s.Paint("Warning:", Yellow), text)
}

// ReadableWidth is the largest width at which text is easy to read, in characters.
const ReadableWidth = 100
