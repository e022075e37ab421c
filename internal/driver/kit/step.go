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
	// IsStopping is set if the guest was asked to stop. StopBy is when that stop is forced, zero
	// for never; the spec's StopBy takes precedence if the spec still asks for the stop.
	IsStopping bool
	StopBy     time.Time
}

// NextStep returns the step that brings a server closer to its spec. A stop that was begun is
// completed even if the spec has changed since, because a signal cannot be taken back.
func NextStep(observed Observed, spec driver.ServerSpec, now time.Time) Step {
	switch {
	case observed.State == driver.StateRemoving, observed.State == driver.StateStopped && spec.Power == driver.PowerOff:
		return StepNone
	case observed.State == driver.StateStopped:
		return StepStart
	case observed.IsStopping || asksForEnd(spec, observed.Run):
		return nextStepOfStop(observed, spec, now)
	case spec.Power == driver.PowerPaused && observed.State == driver.StateRunning:
		return StepPause
	case spec.Power == driver.PowerOn && observed.State == driver.StatePaused:
		return StepResume
	}
	return StepNone
}

func nextStepOfStop(observed Observed, spec driver.ServerSpec, now time.Time) Step {
	switch deadline := StopDeadline(observed, spec); {
	case !deadline.IsZero() && !now.Before(deadline):
		return StepKill
	case observed.IsStopping:
		return StepWait
	}
	return StepStop
}

// asksForEnd reports whether a spec asks for the end of the current run.
func asksForEnd(spec driver.ServerSpec, run string) bool {
	return spec.Power == driver.PowerOff || (spec.RestartRun != "" && spec.RestartRun == run)
}

// StopDeadline returns when the stop of a run is forced. If the spec no longer asks for the stop,
// the time from when the stop began still holds.
func StopDeadline(observed Observed, spec driver.ServerSpec) time.Time {
	if observed.IsStopping && !asksForEnd(spec, observed.Run) {
		return observed.StopBy
	}
	return spec.StopBy
}
