// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// reasons drains the events and returns their reasons.
func (g *rig) reasons() (reasons []string) {
	for {
		select {
		case e := <-g.events.Events:
			reasons = append(reasons, strings.Fields(e)[1])
		default:
			return reasons
		}
	}
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
	if n := g.engine.calls - calls; n != 1 {
		t.Errorf("the driver was called %d times, want 1", n)
	}
	if vm := g.vm(); vm.Status.Server.Generation != vm.Generation {
		t.Errorf("the status has generation %d as passed, want %d", vm.Status.Server.Generation, vm.Generation)
	}
	if g.r.unreported.get(key) != nil {
		t.Error("what was written is still recorded")
	}
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
	if len(passed) != 2 || len(passed[0])+len(passed[1]) > 0 {
		t.Errorf("without a record the driver got %+v, want two calls without objects", passed)
	}
	g.statusErr = nil
	g.reconcile()
	if got := g.vm().Status.Objects; len(got) != 1 || got[0].Nonce != "nonce" {
		t.Errorf("the status has %+v", got)
	}
	if last := passed[len(passed)-1]; len(passed) != 4 || len(last) != 1 {
		t.Errorf("the driver got %+v, want the recorded object in the fourth call", passed)
	}
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
	if g.server().Run == run {
		t.Error("it was not started")
	}
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
	if op := g.vm().Status.Operation; op != nil {
		t.Errorf("still under way: %+v", op)
	}
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

// TestImportedStatus checks that what versions before status.binding recorded in
// conditions and reasons is imported once, with the same meaning.
func TestImportedStatus(t *testing.T) {
	condition := func(kind, reason, message string) func(*api.VirtualMachineStatus) {
		return func(s *api.VirtualMachineStatus) {
			meta.SetStatusCondition(&s.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionTrue, Reason: reason, Message: message})
		}
	}
	older := func(s *api.VirtualMachineStatus) {
		s.Server = &api.ServerStatus{ID: "id-1", State: string(driver.StateStopped)}
		s.StartTime = &metav1.MicroTime{Time: vmtest.T0.Add(-time.Hour)}
		if s.Operation != nil {
			s.Operation.Failure, s.Operation.Reason = "", ""
		}
	}
	tests := map[string]struct {
		status func(*api.VirtualMachineStatus)
		check  func(*api.VirtualMachineStatus) bool
	}{
		"stopped on request": {condition(api.ConditionRunning, api.ReasonStoppedAsAsked, ""), func(s *api.VirtualMachineStatus) bool { return s.Server.StoppedRun == "run-1" }},
		"completed":          {condition(api.ConditionRunning, api.ReasonCompleted, ""), func(s *api.VirtualMachineStatus) bool { return s.Server.StoppedRun == "" }},
		"waits": {condition(api.ConditionRestartRequired, api.ReasonChangePending, "image, ports: applied at the next restart (change ...)"), func(s *api.VirtualMachineStatus) bool {
			return slices.Equal(s.PendingFields, []string{"image", "ports"})
		}},
		"failing": {vmtest.Failing(api.OperationStart, 2, time.Second), func(s *api.VirtualMachineStatus) bool {
			return s.Operation.Failure == api.FailureFailed && s.Operation.Reason == api.ReasonOperationFailed
		}},
		"exhausted": {func(s *api.VirtualMachineStatus) {
			vmtest.Failing(api.OperationStart, 2, time.Second)(s)
			s.Reason = api.ReasonExhausted
		}, func(s *api.VirtualMachineStatus) bool { return s.Operation.Failure == api.FailureExhausted }},
		"refused": {func(s *api.VirtualMachineStatus) { vmtest.Refused(s) }, func(s *api.VirtualMachineStatus) bool { return s.Operation.Failure == api.FailureRefused }},
		"crashing, waits": {func(s *api.VirtualMachineStatus) {
			s.Reason, s.Operation = api.ReasonRestarting, &api.Operation{Type: api.OperationStart, Attempts: 2}
		}, func(s *api.VirtualMachineStatus) bool { return s.Operation.Failure == api.FailureExited }},
		"crashing, runs": {func(s *api.VirtualMachineStatus) {
			s.Reason, s.Operation = api.ReasonRunning, &api.Operation{Type: api.OperationStart, Attempts: 2}
		}, func(s *api.VirtualMachineStatus) bool { return s.Operation.Failure == api.FailureExited }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			status := vmtest.ReportedVM().Status(tc.status).Status(older).Obj().Status
			importStatus(&status, vmtest.Ended(1))
			if !tc.check(&status) {
				t.Errorf("got %+v, operation %+v, server %+v", status, status.Operation, status.Server)
			}
			before := *status.DeepCopy()
			status.Binding = &api.Binding{Driver: "fake", EngineID: vmtest.EngineID}
			condition(api.ConditionRestartRequired, "x", "other: x")(&status)
			importStatus(&status, vmtest.Ended(1))
			if !slices.Equal(status.PendingFields, before.PendingFields) {
				t.Error("imported twice")
			}
		})
	}
}

// TestUpgradeOfAStoppedServer checks that a server that an older version stopped on
// request starts again under this version, whatever its restart policy.
func TestUpgradeOfAStoppedServer(t *testing.T) {
	g := newRunning(t, fake.Options{}, framework.NewVM("vm").RestartPolicy(api.RestartNever))
	g.setAction(api.ActionStopped)
	g.reconcile()
	vm := g.vm()
	vm.Status.Binding, vm.Status.Server.StoppedRun = nil, ""
	assert.NoError(t, g.api.Status().Update(t.Context(), vm))
	g.newReconciler()
	g.setAction(api.ActionActive)
	g.reconcile()
	g.wantPhase(api.PhaseActive, api.ReasonRunning)
}

// TestUnreportedServerOfAnotherEngine checks that what another engine has created is not kept for the
// status of a later pass.
func TestUnreportedServerOfAnotherEngine(t *testing.T) {
	t.Parallel()
	for name, isUnobserved := range map[string]bool{"its own engine": false, "another engine": true} {
		p := stepOf(vmtest.ReportedVM().Obj(), vmtest.Present(driver.StateStarting))
		p.unreported, p.decision.Status.Unobserved = true, isUnobserved
		p.r.storeUnreported(p.facts, p.decision)
		if left := p.r.findUnreported(p.base); left == nil || (left.status.Server == nil) != isUnobserved {
			t.Errorf("%s: what is left is %+v", name, left)
		}
	}
}
