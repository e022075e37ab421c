// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"time"

	"cloudnative.tw/drover/internal/driver"
)

// Step is one thing to do to a server. Error messages begin with its text.
type Step string

// Values of Step.
const (
	StepNone   Step = "none"
	StepWait   Step = "wait" // for a stop that was begun
	StepStart  Step = "start"
	StepStop   Step = "stop"
	StepKill   Step = "kill"
	StepPause  Step = "pause"
	StepResume Step = "resume"
)

// Observed has a driver's observations of a server.
type Observed struct {
	State driver.State
	Run   string
	// IsStopping is set if the end of the run was requested, and StopBy is when that stop is
	// forced, unless the spec says so; zero means never.
	IsStopping bool
	StopBy     time.Time
}

// NextStep returns the step that brings a server closer to its spec. A stop that was begun is
// completed even if the spec has changed since, because a signal cannot be taken back.
func NextStep(has Observed, wants driver.ServerSpec, now time.Time) Step {
	switch {
	case has.State == driver.StateRemoving, has.State == driver.StateStopped && wants.Power == driver.PowerOff:
		return StepNone
	case has.State == driver.StateStopped:
		return StepStart
	case has.IsStopping || endsRun(wants, has.Run):
		return stepToEnd(has, wants, now)
	case wants.Power == driver.PowerPaused && has.State == driver.StateRunning:
		return StepPause
	case wants.Power == driver.PowerOn && has.State == driver.StatePaused:
		return StepResume
	}
	return StepNone
}

func stepToEnd(has Observed, wants driver.ServerSpec, now time.Time) Step {
	switch by := StopDeadline(has, wants); {
	case !by.IsZero() && !now.Before(by):
		return StepKill
	case has.IsStopping:
		return StepWait
	}
	return StepStop
}

// endsRun reports whether a spec asks for the end of a run that is under way.
func endsRun(wants driver.ServerSpec, run string) bool {
	return wants.Power == driver.PowerOff || wants.RestartRun != "" && wants.RestartRun == run
}

// StopDeadline returns when the stop of a run is forced: as the spec says while it asks for
// the stop, otherwise as the spec said when the stop began.
func StopDeadline(has Observed, wants driver.ServerSpec) time.Time {
	if has.IsStopping && !endsRun(wants, has.Run) {
		return has.StopBy
	}
	return wants.StopBy
}
