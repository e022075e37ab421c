// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// eventTexts drains the events and returns their texts, which have the kind, the reason and the note.
func (g *rig) eventTexts() (texts []string) {
	for {
		select {
		case e := <-g.events.Events:
			texts = append(texts, e)
		default:
			return texts
		}
	}
}

// reasons drains the events and returns their reasons.
func (g *rig) reasons() (reasons []string) {
	for _, e := range g.eventTexts() {
		reasons = append(reasons, strings.Fields(e)[1])
	}
	return reasons
}

func (g *rig) wantEvents(want ...string) {
	g.t.Helper()
	if got := g.reasons(); !slices.Equal(got, want) {
		g.t.Errorf("events %v, want %v", got, want)
	}
}

// TestEventAfterAFailedWrite checks that the next pass reports what was done.
// The spec is not passed to the driver twice, however often the write fails.
func TestEventAfterAFailedWrite(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.wantEvents(api.EventCreated)
	g.edit(func(s *api.VirtualMachineSpec) { s.Resource[api.ResourceMemory] = *s.Resource.Cpu() })
	calls := g.engine.calls
	g.statusErr = errConflict
	g.passes(3)
	g.wantEvents()
	g.statusErr = nil
	g.reconcile()
	g.wantEvents(api.EventUpdated)
	n := g.engine.calls - calls
	assert.True(t, n == 1, "the driver was called %d times, want 1", n)
	vm := g.vm()
	assert.True(t, vm.Status.Server.Generation == vm.Generation, "the status has generation %d as passed, want %d", vm.Status.Server.Generation, vm.Generation)
	assert.True(t, g.r.unreported.Get(key) == nil, "what was written is still recorded")
}

// TestObjectsAfterAFailedWrite checks that the driver gets no objects as recorded that the write of the
// status has failed for.
func TestObjectsAfterAFailedWrite(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	wanted := []driver.Object{{Kind: "Pod", Name: "vm", Nonce: "nonce"}}
	var passed [][]driver.Object
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		passed = append(passed, spec.Objects)
		if len(spec.Objects) == 0 {
			return driver.Server{}, &driver.RecordFirstError{Objects: wanted}
		}
		s, err := live()
		s.Objects = spec.Objects
		return s, err
	}
	g.edit(func(s *api.VirtualMachineSpec) { s.Resource[api.ResourceMemory] = *s.Resource.Cpu() })
	g.statusErr = errConflict
	g.passes(2)
	assert.True(t, len(passed) == 2 && len(passed[0])+len(passed[1]) == 0, "without a record the driver got %+v, want two calls without objects", passed)
	g.statusErr = nil
	g.reconcile()
	got := g.vm().Status.Objects
	assert.True(t, len(got) == 1 && got[0].Nonce == "nonce", "the status has %+v", got)
	last := passed[len(passed)-1]
	assert.True(t, len(passed) == 4 && len(last) == 1, "the driver got %+v, want the recorded object in the fourth call", passed)
}

// TestStoppedAndActiveAgainInAConflict covers a server that is switched on again
// while the write about its stop fails. It was stopped on request, so it starts
// whatever its restart policy.
func TestStoppedAndActiveAgainInAConflict(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	run := g.server().Run
	g.setAction(api.ActionStopped)
	g.statusErr = errConflict
	g.passes(1)
	g.statusErr = nil
	g.setAction(api.ActionActive)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	assert.True(t, g.server().Run != run, "it was not started")
}

// TestEventsOfACrash checks that one crash causes one event about it, with the last
// output of the engine's process, and one event about the start.
func TestEventsOfACrash(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.wantEvents(api.EventCreated)
	for range 3 {
		g.crashNow(0)
		g.untilNextRun()
		g.wantEvents(api.EventCrashed, api.EventStarted)
	}
	g.clock.Step(time.Minute) // the run is stable
	g.reconcile()
	g.wantEvents()
	op := g.vm().Status.Operation
	assert.True(t, op == nil, "still under way: %+v", op)
}

// TestCrashWithRestartNever checks that the end is final and causes one event.
func TestCrashWithRestartNever(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.reasons()
	g.crashNow(0)
	g.reconcile()
	g.wantPhase(api.PhaseFailed, api.ReasonExited)
	g.wantCondition(api.ConditionStalled, metav1.ConditionTrue)
	g.wantEvents(api.EventCrashed, api.ReasonExited)
	g.reconcile()
	g.newReconciler()
	g.reconcile()
	g.wantEvents()
}

// TestRefusedField checks that a field that the server cannot have blocks nothing
// else, and is reported until the spec drops it.
func TestRefusedField(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").Image("a"))
	g.engine.ensure = func(spec driver.ServerSpec, live call) (driver.Server, error) {
		s, err := live()
		if spec.Image.Source != "a" {
			s.Refused = &driver.Refused{Field: "image", Reason: driver.ReasonImageImmutable, Message: "spec.image.source is " + spec.Image.Source}
		}
		return s, err
	}
	g.edit(func(s *api.VirtualMachineSpec) { s.Image = &api.Image{Source: "b"} })
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonImageImmutable)
	g.wantCondition(api.ConditionReady, metav1.ConditionFalse)
	g.wantCondition(api.ConditionStalled, metav1.ConditionTrue)
	g.startInventory()
	g.newReconciler()
	g.wantWrites(0, func() { g.reconcile() })
	g.setAction(api.ActionStopped)
	g.reconcile()
	g.wantPhase(api.PhaseStopped, api.ReasonImageImmutable)
	g.edit(func(s *api.VirtualMachineSpec) { s.Action, s.Image = api.ActionActive, &api.Image{Source: "a"} })
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
	g.wantCondition(api.ConditionReady, metav1.ConditionTrue)
	g.wantCondition(api.ConditionStalled, "")
}

// TestUnreportedServerOfAnotherEngine checks that what another engine has created is not kept for the
// status of a later pass.
func TestUnreportedServerOfAnotherEngine(t *testing.T) {
	t.Parallel()
	for name, isUnobserved := range map[string]bool{"the VM's engine": false, "another engine": true} {
		p := stepOf(vmtest.ReportedVM().Obj(), vmtest.Present(driver.StateStarting))
		p.unreported, p.decision.Status.Unobserved = true, isUnobserved
		p.r.storeUnreported(p.facts, p.decision)
		left := p.r.findUnreported(p.base)
		assert.True(t, left != nil && (left.status.Server == nil) == isUnobserved, "%s: what is left is %+v", name, left)
	}
}
