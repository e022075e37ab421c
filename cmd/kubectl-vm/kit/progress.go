// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"fmt"
	"io"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// redrawPeriod is the time between two redraws of a progress line.
const redrawPeriod = 150 * time.Millisecond

// spinner has the characters that a progress line shows in turn.
const spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

// ProgressLine is the last line of a terminal, which is redrawn in place. Without a terminal, only
// the lines of PrintAbove are printed.
type ProgressLine struct {
	err      io.Writer
	clock    clock.WithTicker
	describe func() string

	mu      sync.Mutex
	drawn   bool
	frame   int
	stopped chan struct{}
	ended   chan struct{}
}

// NewProgressLine starts a progress line with the text of describe, which is called from another
// goroutine. The caller must call Stop.
func NewProgressLine(errOut io.Writer, c clock.WithTicker, describe func() string) *ProgressLine {
	p := &ProgressLine{err: errOut, clock: c, describe: describe}
	if TerminalOf(errOut).IsTerminal {
		p.stopped, p.ended = make(chan struct{}), make(chan struct{})
		go p.redraw()
	}
	return p
}

func (p *ProgressLine) redraw() {
	defer close(p.ended)
	ticker := p.clock.NewTicker(redrawPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-p.stopped:
			return
		case <-ticker.C():
			p.drawLine()
		}
	}
}

func (p *ProgressLine) drawLine() {
	text := p.describe()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLine()
	if text == "" {
		return
	}
	s := TerminalOf(p.err)
	frames := []rune(spinner)
	p.frame++
	_, _ = fmt.Fprintf(p.err, "%s %s", s.Paint(string(frames[p.frame%len(frames)]), Green), ShortenText(printable.Line(text), s.Width-3))
	p.drawn = true
}

// eraseLine removes the line. The caller holds mu.
func (p *ProgressLine) eraseLine() {
	if p.drawn {
		_, _ = io.WriteString(p.err, "\r\x1b[K")
	}
	p.drawn = false
}

// PrintAbove prints a permanent line above the progress line.
func (p *ProgressLine) PrintAbove(out io.Writer, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLine()
	_, _ = fmt.Fprintf(out, format+"\n", args...)
}

// Stop removes the progress line. It may be called several times.
func (p *ProgressLine) Stop() {
	if p.stopped == nil {
		return
	}
	close(p.stopped)
	<-p.ended
	p.stopped = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLine()
}
