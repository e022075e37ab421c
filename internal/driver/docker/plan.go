// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"github.com/moby/moby/api/types/container"

	"cloudnative.tw/drover/internal/driver"
)

// step is one change of a container. Its text begins the message of an error.
type step string

const (
	stepNone    step = "none"
	stepStop    step = "stop"
	stepStart   step = "start"
	stepPause   step = "pause"
	stepUnpause step = "unpause"
	stepReplace step = "replace"
)

// nextStep returns the step that brings a container closer to its spec. A stop that has
// begun is completed even if the spec has changed since, because the signal cannot
// be taken back and the engine's restarter is off for that run.
func nextStep(i *instance, spec driver.ServerSpec, stopping bool, pending []string) step {
	switch {
	case i.state == container.StateRemoving:
		return stepNone
	case !i.hasRun():
		return stepWhenOff(i, spec, pending)
	case stopping, spec.Power == driver.PowerOff, endsRun(i, spec):
		return stepStop
	case i.state == container.StateRestarting:
		return stepBetweenRuns(pending)
	case spec.Power == driver.PowerPaused && i.state == container.StateRunning:
		return stepPause
	case spec.Power == driver.PowerOn && i.state == container.StatePaused:
		return stepUnpause
	}
	return stepNone
}

func endsRun(i *instance, spec driver.ServerSpec) bool {
	return spec.RestartRun != "" && i.runID() == spec.RestartRun
}

func stepWhenOff(i *instance, spec driver.ServerSpec, pending []string) step {
	switch {
	case spec.Power == driver.PowerOff:
		return stepNone
	case len(pending) > 0 || i.state == container.StateDead:
		return stepReplace
	}
	return stepStart
}

// stepBetweenRuns uses the pause between two tries of the engine's restarter: a
// change that waits for a restart may be what repairs the guest.
func stepBetweenRuns(pending []string) step {
	if len(pending) > 0 {
		return stepStop
	}
	return stepNone
}
