// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package findings runs checks of an installation and prints what they find, for
// `drover doctor` and for `kubectl vm doctor`.
//
// Start with Check and Run; print.go shows the findings to people.
package findings

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// Level says how bad a finding is.
type Level string

// The levels, from good to bad.
const (
	// LevelOK means that all is as it should be.
	LevelOK Level = "ok"
	// LevelNote means that something is worth knowing, and nothing has to be done.
	LevelNote Level = "note"
	// LevelWarning means that Drover works with a restriction, or will soon stop working.
	LevelWarning Level = "warning"
	// LevelError means that Drover, or a driver that it should run, does not work.
	LevelError Level = "error"
)

// levels has the levels from good to bad.
var levels = []Level{LevelOK, LevelNote, LevelWarning, LevelError}

// Finding is the result of a check.
type Finding struct {
	// Name of the check, and the Group under which it is shown.
	Name  string `json:"name"`
	Group string `json:"group"`
	Level Level  `json:"level"`
	// Observed describes the state, with the values that were read.
	Observed string `json:"observed"`
	// Meaning says which effect that has for the person who reads it.
	Meaning string `json:"meaning,omitempty"`
	// Fix says what to do, and Command is the one command that does it, if there is one.
	Fix     string `json:"fix,omitempty"`
	Command string `json:"command,omitempty"`
}

// OK returns a finding that all is well.
func OK(format string, args ...any) Finding {
	return Finding{Level: LevelOK, Observed: fmt.Sprintf(format, args...)}
}

// Note returns a finding that is worth knowing.
func Note(format string, args ...any) Finding {
	return Finding{Level: LevelNote, Observed: fmt.Sprintf(format, args...)}
}

// Warning returns a finding about a restriction.
func Warning(format string, args ...any) Finding {
	return Finding{Level: LevelWarning, Observed: fmt.Sprintf(format, args...)}
}

// Error returns a finding about something that does not work.
func Error(format string, args ...any) Finding {
	return Finding{Level: LevelError, Observed: fmt.Sprintf(format, args...)}
}

// Means returns the finding with its meaning.
func (f Finding) Means(format string, args ...any) Finding {
	f.Meaning = fmt.Sprintf(format, args...)
	return f
}

// FixedBy returns the finding with the steps that resolve it.
func (f Finding) FixedBy(format string, args ...any) Finding {
	f.Fix = fmt.Sprintf(format, args...)
	return f
}

// FixedByCommand returns the finding with the command that repairs it.
func (f Finding) FixedByCommand(format string, args ...any) Finding {
	f.Command = fmt.Sprintf(format, args...)
	return f
}

// Check looks at one thing.
type Check struct {
	Group, Name string
	// Within is how long it may take; zero means DefaultWithin.
	Within time.Duration
	// Run returns what it finds; nothing means that the check does not apply. It changes
	// nothing.
	Run func(ctx context.Context) []Finding
}

// DefaultWithin is how long a check may take.
const DefaultWithin = 5 * time.Second

// Run runs all checks at the same time and returns their findings, in the order of the
// checks. A check that hangs becomes a finding, and does not keep the others from ending.
func Run(ctx context.Context, checks []Check) []Finding {
	results := make([]<-chan []Finding, len(checks))
	for i, c := range checks {
		results[i] = c.startCheck(ctx)
	}
	var all []Finding
	for i, result := range results {
		for _, f := range <-result {
			f.Group, f.Name = checks[i].Group, checks[i].Name
			all = append(all, f)
		}
	}
	return all
}

// graceful is how long a check that notices the end of its time may take to report that
// itself.
const graceful = 200 * time.Millisecond

// startCheck runs the check in the background. What it found is sent at the latest when its time
// is over, even if it is stuck then.
func (c Check) startCheck(ctx context.Context) <-chan []Finding {
	within := cmp.Or(c.Within, DefaultWithin)
	found, result := make(chan []Finding, 1), make(chan []Finding, 1)
	ctx, cancel := context.WithTimeout(ctx, within)
	go func() { found <- c.Run(ctx) }()
	go func() {
		defer cancel()
		select {
		case f := <-found:
			result <- f
		case <-time.After(within + graceful):
			result <- []Finding{Warning("the check did not end within %v", within).
				Means("What it looks at does not answer, such as a file system, a program or an engine. Nothing is known about it; the other checks are not affected.")}
		}
	}()
	return result
}

// Worst returns the worst level among findings.
func Worst(all []Finding) Level {
	worst := LevelOK
	for _, f := range all {
		if slices.Index(levels, f.Level) > slices.Index(levels, worst) {
			worst = f.Level
		}
	}
	return worst
}

// Report is the findings as JSON.
type Report struct {
	// Level is the worst of them.
	Level    Level     `json:"level"`
	Findings []Finding `json:"findings"`
}

// NewReport returns the report of findings.
func NewReport(all []Finding) Report {
	if all == nil {
		all = []Finding{}
	}
	return Report{Level: Worst(all), Findings: all}
}
