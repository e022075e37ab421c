// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"testing"
	"time"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// TestNextStep checks every state with every power, and that a stop is completed, is forced
// once it is due, and excludes other steps meanwhile.
func TestNextStep(t *testing.T) {
	t.Parallel()
	now := time.Unix(1000, 0)
	early, late := now.Add(-time.Second), now.Add(time.Second)
	stopping := func(deadline time.Time) Observed {
		return Observed{State: driver.StateRunning, Run: "run", IsStopping: true, StopBy: deadline}
	}
	in := func(state driver.State) Observed { return Observed{State: state, Run: "run"} }
	for name, c := range map[string]struct {
		has   Observed
		wants driver.ServerSpec
		want  Step
	}{
		"off, on":                       {in(driver.StateStopped), driver.ServerSpec{Power: driver.PowerOn}, StepStart},
		"off, paused":                   {in(driver.StateStopped), driver.ServerSpec{Power: driver.PowerPaused}, StepStart},
		"off, off":                      {in(driver.StateStopped), driver.ServerSpec{Power: driver.PowerOff}, StepNone},
		"off, end the run that is over": {in(driver.StateStopped), driver.ServerSpec{Power: driver.PowerOn, RestartRun: "run"}, StepStart},
		"running, on":                   {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerOn}, StepNone},
		"running, paused":               {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerPaused}, StepPause},
		"running, off":                  {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerOff, StopBy: late}, StepStop},
		"running, off, for ever":        {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerOff}, StepStop},
		"running, off, no time":         {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerOff, StopBy: now}, StepKill},
		"running, end the run":          {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerOn, RestartRun: "run", StopBy: late}, StepStop},
		"running, end another run":      {in(driver.StateRunning), driver.ServerSpec{Power: driver.PowerOn, RestartRun: "another"}, StepNone},
		"paused, paused":                {in(driver.StatePaused), driver.ServerSpec{Power: driver.PowerPaused}, StepNone},
		"paused, on":                    {in(driver.StatePaused), driver.ServerSpec{Power: driver.PowerOn}, StepResume},
		"paused, off":                   {in(driver.StatePaused), driver.ServerSpec{Power: driver.PowerOff}, StepStop},
		"paused, paused, end the run":   {in(driver.StatePaused), driver.ServerSpec{Power: driver.PowerPaused, RestartRun: "run"}, StepStop},
		"restarting, on":                {in(driver.StateRestarting), driver.ServerSpec{Power: driver.PowerOn}, StepNone},
		"restarting, paused":            {in(driver.StateRestarting), driver.ServerSpec{Power: driver.PowerPaused}, StepNone},
		"restarting, off":               {in(driver.StateRestarting), driver.ServerSpec{Power: driver.PowerOff}, StepStop},
		"removing, on":                  {in(driver.StateRemoving), driver.ServerSpec{Power: driver.PowerOn}, StepNone},
		"removing, off":                 {in(driver.StateRemoving), driver.ServerSpec{Power: driver.PowerOff}, StepNone},
		"stopping":                      {stopping(late), driver.ServerSpec{Power: driver.PowerOff, StopBy: late}, StepWait},
		"stopping, due":                 {stopping(late), driver.ServerSpec{Power: driver.PowerOff, StopBy: early}, StepKill},
		"stopping, put off":             {stopping(early), driver.ServerSpec{Power: driver.PowerOff, StopBy: late}, StepWait},
		"stopping, never forced":        {stopping(early), driver.ServerSpec{Power: driver.PowerOff}, StepWait},
		"stopping, but on again":        {stopping(late), driver.ServerSpec{Power: driver.PowerOn, StopBy: early}, StepWait},
		"stopping, but on again, due":   {stopping(early), driver.ServerSpec{Power: driver.PowerOn}, StepKill},
		"stopping, but paused":          {stopping(late), driver.ServerSpec{Power: driver.PowerPaused}, StepWait},
		"stopping for a restart":        {stopping(late), driver.ServerSpec{Power: driver.PowerOn, RestartRun: "run", StopBy: late}, StepWait},
	} {
		assert.Equal(t, name, NextStep(c.has, c.wants, now), c.want)
	}
}
