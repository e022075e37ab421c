// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kittest"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

func TestPowerChanges(t *testing.T) {
	running := kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True")
	tests := map[string]struct {
		change  func(*api.VirtualMachine, time.Time) (*powerChange, string, error)
		vm      *framework.VMBuilder
		want    api.Action
		restart bool
		fails   bool
	}{
		"start what runs":        {change: startVM, vm: running},
		"start what is off":      {change: startVM, vm: kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), want: api.ActionActive},
		"start what is paused":   {change: startVM, vm: kittest.NewVM(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), want: api.ActionActive},
		"start what has ended":   {change: startVM, vm: kittest.NewVM(api.PhaseStopped, api.ReasonCompleted, "True"), restart: true},
		"start what has failed":  {change: startVM, vm: kittest.NewVM(api.PhaseFailed, api.ReasonExited, "False"), restart: true},
		"stop what runs":         {change: stopVM, vm: running, want: api.ActionStopped},
		"stop what is paused":    {change: stopVM, vm: kittest.NewVM(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), want: api.ActionStopped},
		"stop what is off":       {change: stopVM, vm: kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped)},
		"pause what runs":        {change: pauseVM, vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True"), want: api.ActionPaused},
		"pause what is off":      {change: pauseVM, vm: kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), fails: true},
		"pause what is paused":   {change: pauseVM, vm: kittest.NewVM(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused)},
		"resume what is paused":  {change: resumeVM, vm: kittest.NewVM(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), want: api.ActionActive},
		"resume what runs":       {change: resumeVM, vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True")},
		"resume what is off":     {change: resumeVM, vm: kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), fails: true},
		"restart what runs":      {change: restartVM, vm: kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True"), restart: true},
		"restart what is off":    {change: restartVM, vm: kittest.NewVM(api.PhaseStopped, api.ReasonStoppedAsAsked, "True").Action(api.ActionStopped), fails: true},
		"restart what is paused": {change: restartVM, vm: kittest.NewVM(api.PhasePaused, api.ReasonPausedAsAsked, "True").Action(api.ActionPaused), fails: true},
	}
	for name, test := range tests {
		change, unchanged, err := test.change(test.vm.Obj(), kittest.Now)
		switch {
		case test.fails != (err != nil):
			t.Errorf("%s: error %v", name, err)
		case test.fails:
		case test.want == "" && !test.restart:
			assert.True(t, change == nil && unchanged != "", "%s: %+v, %q; want no change and why", name, change, unchanged)
		case change == nil || change.Action != test.want || (change.RestartedAt != nil) != test.restart:
			t.Errorf("%s: %+v, want %q, restart %t", name, change, test.want, test.restart)
		}
	}
}

func TestRestartHasAlwaysANewTime(t *testing.T) {
	for name, earlier := range map[string]time.Time{"within a second": kittest.Now, "by a clock that is ahead": kittest.Now.Add(time.Hour), "long ago": kittest.Now.Add(-time.Hour)} {
		vm := kittest.NewVM(api.PhaseActive, api.ReasonRunning, "True").RestartedAt(earlier).Status(func(s *api.VirtualMachineStatus) {
			s.RestartedAt = &metav1.Time{Time: earlier}
		}).Obj()
		at := restartAt(vm, kittest.Now.Add(300*time.Millisecond)).RestartedAt
		assert.True(t, at.After(earlier), "%s: %s after %s", name, at, earlier)
		assert.True(t, at.Nanosecond() == 0, "%s: %s has parts of a second, which the API drops", name, at)
	}
}
