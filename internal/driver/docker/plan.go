// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"github.com/distribution/reference"
	"github.com/moby/moby/api/types/container"

	"cloudnative.tw/drover/internal/driver"
)

// step is one change of a container.
type step string

const (
	stepNone    step = "none"
	stepStop    step = "stop"
	stepStart   step = "start"
	stepPause   step = "pause"
	stepUnpause step = "unpause"
	stepReplace step = "replace"
)

// nextStep returns the step that brings a container closer to its spec. A stop that
// was begun is completed whatever the spec says meanwhile, because the signal cannot
// be taken back and the engine's restarter is off for that run.
func nextStep(r instance, spec driver.ServerSpec, stopping bool, pending []string) step {
	switch {
	case r.state == container.StateRemoving:
		return stepNone
	case !r.isActive():
		return stepWhenOff(r, spec, pending)
	case stopping, spec.Power == driver.PowerOff, endsRun(r, spec):
		return stepStop
	case r.state == container.StateRestarting:
		return stepBetweenRuns(pending)
	case spec.Power == driver.PowerPaused && r.state == container.StateRunning:
		return stepPause
	case spec.Power == driver.PowerOn && r.state == container.StatePaused:
		return stepUnpause
	}
	return stepNone
}

func endsRun(r instance, spec driver.ServerSpec) bool {
	return spec.RestartRun != "" && r.runID() == spec.RestartRun
}

func stepWhenOff(r instance, spec driver.ServerSpec, pending []string) step {
	switch {
	case spec.Power == driver.PowerOff:
		return stepNone
	case len(pending) > 0 || r.state == container.StateDead:
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

// pendingFields returns the fields of the spec that need a new container. It
// compares with what was requested at creation, which no engine normalises. An
// empty image means the default at that time, so a new default is not a change of
// the spec.
func pendingFields(r instance, spec driver.ServerSpec) []string {
	var fields []string
	if asked := spec.Image.Source; asked != "" && fullReference(asked) != fullReference(r.image) {
		fields = append(fields, "image")
	}
	if portsText(spec.Ports) != r.ports {
		fields = append(fields, "ports")
	}
	return fields
}

// fullReference returns one text for all ways to write a reference: nginx is
// docker.io/library/nginx:latest.
func fullReference(image string) string {
	if named, err := reference.ParseDockerRef(image); err == nil {
		return named.String()
	}
	return image
}
