// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package findings runs checks of an installation and prints their findings, for
// `drover doctor` and for `kubectl vm doctor`.
//
// Start with Check and Run. print.go prints findings for people.
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
	// LevelOK means that everything is as it should be.
	LevelOK Level = "ok"
	// LevelNote means that something is worth knowing, but nothing has to be done.
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
	// Name is the name of the check, and Group the heading of the finding.
	Name  string `json:"name"`
	Group string `json:"group"`
	Level Level  `json:"level"`
	// Observed describes the state, with the values that were read.
	Observed string `json:"observed"`
	// Meaning says which effect the state has for the user.
	Meaning string `json:"meaning,omitempty"`
	// Fix says what to do, and Command is the command that does it, if one command is enough.
	Fix     string `json:"fix,omitempty"`
	Command string `json:"command,omitempty"`
}

// OK returns a finding of LevelOK.
func OK(format string, args ...any) Finding {
	return Finding{Level: LevelOK, Observed: fmt.Sprintf(format, args...)}
}

// Note returns a finding of LevelNote.
func Note(format string, args ...any) Finding {
	return Finding{Level: LevelNote, Observed: fmt.Sprintf(format, args...)}
}

// Warning returns a finding of LevelWarning.
func Warning(format string, args ...any) Finding {
	return Finding{Level: LevelWarning, Observed: fmt.Sprintf(format, args...)}
}

// Error returns a finding of LevelError.
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

// Check checks one part of an installation.
type Check struct {
	Group, Name string
	// Timeout is how long the check may take; zero means DefaultTimeout.
	Timeout time.Duration
	// Run returns the findings, or nothing if the check does not apply. It must not change anything.
	Run func(ctx context.Context) []Finding
}

// DefaultTimeout is the default of Check.Timeout.
const DefaultTimeout = 5 * time.Second

// Run runs all checks at the same time and returns their findings, in the order of the
// checks. A check that hangs becomes a finding, and does not delay the others.
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

// reportGrace is how much longer than its timeout a check may take to report its timeout itself.
const reportGrace = 200 * time.Millisecond

// startCheck runs the check in the background, and returns a channel that receives its findings. A
// check that hangs longer than its timeout has the finding that it hangs.
func (c Check) startCheck(ctx context.Context) <-chan []Finding {
	timeout := cmp.Or(c.Timeout, DefaultTimeout)
	found, result := make(chan []Finding, 1), make(chan []Finding, 1)
	ctx, cancel := context.WithTimeout(ctx, timeout)
	go func() { found <- c.Run(ctx) }()
	go func() {
		defer cancel()
		select {
		case f := <-found:
			result <- f
		case <-time.After(timeout + reportGrace):
			result <- []Finding{Warning("the check did not end within %v", timeout).
				Means("Something does not answer the check, such as a file system, a program or an engine. Its state is unknown. The other checks are not affected.")}
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

// Report has the findings for JSON.
type Report struct {
	// Level is the worst level of the findings.
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
