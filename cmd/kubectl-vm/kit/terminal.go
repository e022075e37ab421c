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

// Screen says how wide an output stream is, and whether it shows colors.
type Screen struct {
	// IsTerminal is set if people look at it.
	IsTerminal bool
	// Width is the width of the terminal in columns, 0 without one.
	Width int
	// HasColors is set if it may be colored.
	HasColors bool
}

// ScreenOf returns what is known of a stream. NO_COLOR and TERM=dumb switch colors off.
func ScreenOf(w io.Writer) Screen {
	file := printable.File(w)
	if file == nil || !term.IsTerminal(int(file.Fd())) {
		return Screen{}
	}
	s := Screen{IsTerminal: true, Width: 80, HasColors: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
		s.Width = width
	}
	return s
}

// Style is how a text looks on a terminal with colors.
type Style string

// The styles, as ANSI sequences.
const (
	plain  Style = ""
	Bold   Style = "\x1b[1m"
	Faint  Style = "\x1b[2m"
	Red    Style = "\x1b[31m"
	Green  Style = "\x1b[32m"
	Yellow Style = "\x1b[33m"
	reset        = "\x1b[0m"
)

// Paint returns a text in a style.
func (s Screen) Paint(text string, look Style) string {
	if !s.HasColors || look == plain || text == "" {
		return text
	}
	return string(look) + text + reset
}

// ShortenText cuts a text to a width.
func ShortenText(text string, width int) string {
	runes := []rune(text)
	if width <= 0 || len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}

// PrintWarning prints a warning as kubectl does.
func (o *Options) PrintWarning(text string) {
	s := ScreenOf(o.ErrOut)
	_, _ = fmt.Fprintf(o.ErrOut, "%s %s\n", s.Paint("Warning:", Yellow), text)
}

// ReadableWidth is how wide a text may be that is easy to read.
const ReadableWidth = 100
