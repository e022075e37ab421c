// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"io"
	"os"
	"strings"

	"golang.org/x/term"
)

// screen is what is known of an output stream.
type screen struct {
	// terminal is set if people look at it.
	terminal bool
	// width and height are those of the terminal; 0 if there is none.
	width, height int
	// color is set if it may be colored.
	color bool
}

// screenOf returns what is known of a stream. NO_COLOR and TERM=dumb switch colors off.
func screenOf(w io.Writer) screen {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return screen{}
	}
	s := screen{terminal: true, width: 80, height: 24, color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, height, err := term.GetSize(int(file.Fd())); err == nil && width > 0 && height > 0 {
		s.width, s.height = width, height
	}
	return s
}

// isInteractive reports whether a person can answer a question.
func (o *Options) isInteractive() bool {
	file, ok := o.In.(*os.File)
	return ok && term.IsTerminal(int(file.Fd())) && screenOf(o.ErrOut).terminal
}

// style is how a text looks on a terminal with colors.
type style string

// The styles, as ANSI sequences.
const (
	plain  style = ""
	bold   style = "\x1b[1m"
	faint  style = "\x1b[2m"
	red    style = "\x1b[31m"
	green  style = "\x1b[32m"
	yellow style = "\x1b[33m"
	reset        = "\x1b[0m"
)

// paint returns a text in a style.
func (s screen) paint(text string, with style) string {
	if !s.color || with == plain || text == "" {
		return text
	}
	return string(with) + text + reset
}

// bar returns a bar of a length for a share in per cent, and its style.
func bar(share float64, length int) cell {
	filled := min(max(int(share/100*float64(length)+0.5), 0), length)
	c := cell{text: strings.Repeat("■", filled) + strings.Repeat("·", length-filled), style: green}
	switch {
	case share >= 90:
		c.style = red
	case share >= 70:
		c.style = yellow
	}
	return c
}

// shorten cuts a text to a width.
func shorten(text string, width int) string {
	runes := []rune(text)
	if width <= 0 || len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}
