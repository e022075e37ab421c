// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"cloudnative.tw/drover/internal/driver"
)

// step is one thing to do to a server.
type step string

const (
	stepNone   step = "none"
	stepReap   step = "reap"   // a QEMU whose guest has ended
	stepStart  step = "start"  // a new run
	stepFinish step = "finish" // a start that was interrupted
	stepStop   step = "stop"
	stepGrow   step = "growth of the disks"
	stepPause  step = "pause"
	stepResume step = "resume"
)

// nextStep returns the step that brings a server closer to its spec. A stop that was
// begun is completed even if the spec changes meanwhile, since a power button that was
// pressed cannot be released.
func nextStep(s *instance, spec driver.ServerSpec) step {
	switch {
	case s.isEnded():
		return stepReap
	case !s.isAlive() && spec.Power == driver.PowerOff:
		return stepNone
	case !s.isAlive():
		return stepStart
	case s.Stop != nil, spec.Power == driver.PowerOff, spec.RestartRun != "" && s.Run == spec.RestartRun:
		return stepStop
	case s.Phase == phaseStarting:
		return stepFinish
	case len(s.sizesToGrow(spec)) > 0:
		return stepGrow
	case spec.Power == driver.PowerPaused && !s.isPaused():
		return stepPause
	case spec.Power == driver.PowerOn && s.isPaused():
		return stepResume
	}
	return stepNone
}
