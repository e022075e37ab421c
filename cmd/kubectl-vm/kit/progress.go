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

// redrawPeriod is the time between two redraws of a line of progress.
const redrawPeriod = 150 * time.Millisecond

// spinner shows that something goes on.
const spinner = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"

// ProgressLine is a line at the end of a terminal that is redrawn in place. Where there is no
// terminal, it prints only what is printed above it.
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

// NewProgressLine begins a line with the text of describe, which must be safe to call at any
// time. The caller stops it.
func NewProgressLine(errOut io.Writer, c clock.WithTicker, describe func() string) *ProgressLine {
	p := &ProgressLine{err: errOut, clock: c, describe: describe}
	if ScreenOf(errOut).IsTerminal {
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
	s := ScreenOf(p.err)
	frames := []rune(spinner)
	p.frame++
	_, _ = fmt.Fprintf(p.err, "%s %s", s.Paint(string(frames[p.frame%len(frames)]), Green), ShortenText(printable.Line(text), s.Width-3))
	p.drawn = true
}

// eraseLine removes the line. The caller has the lock.
func (p *ProgressLine) eraseLine() {
	if p.drawn {
		_, _ = io.WriteString(p.err, "\r\x1b[K")
	}
	p.drawn = false
}

// PrintAbove prints a line that stays, above the one that is redrawn.
func (p *ProgressLine) PrintAbove(out io.Writer, format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.eraseLine()
	_, _ = fmt.Fprintf(out, format+"\n", args...)
}

// Stop removes the line. It may be called again.
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
