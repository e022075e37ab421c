// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/term"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// screen says how wide an output stream is, and whether it shows colors.
type screen struct {
	// terminal is set if people look at it.
	terminal bool
	// width is the width of the terminal in columns, 0 without one.
	width int
	// color is set if it may be colored.
	color bool
}

// screenOf returns what is known of a stream. NO_COLOR and TERM=dumb switch colors off.
func screenOf(w io.Writer) screen {
	file := printable.File(w)
	if file == nil || !term.IsTerminal(int(file.Fd())) {
		return screen{}
	}
	s := screen{terminal: true, width: 80, color: os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
	if width, _, err := term.GetSize(int(file.Fd())); err == nil && width > 0 {
		s.width = width
	}
	return s
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

// paintText returns a text in a style.
func (s screen) paintText(text string, look style) string {
	if !s.color || look == plain || text == "" {
		return text
	}
	return string(look) + text + reset
}

// shortenText cuts a text to a width.
func shortenText(text string, width int) string {
	runes := []rune(text)
	if width <= 0 || len(runes) <= width {
		return text
	}
	return string(runes[:width-1]) + "…"
}

// printWarning prints a warning as kubectl does.
func (o *Options) printWarning(text string) {
	s := screenOf(o.ErrOut)
	_, _ = fmt.Fprintf(o.ErrOut, "%s %s\n", s.paintText("Warning:", yellow), text)
}
