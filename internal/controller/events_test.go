// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/vmtest"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/fake"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// passOf returns a pass that has made an observation of an unchanged VirtualMachine.
func passOf(vm *framework.VMBuilder, o inventory.Observation) *pass {
	object := vm.Obj()
	return &pass{r: &Reconciler{Driver: "pod"}, facts: facts{base: object, vm: object.DeepCopy(), observed: observation{Observation: o}}}
}

// disrupted adds a disruption to an observation of a server.
func disrupted(o inventory.Observation, cause string) inventory.Observation {
	return vmtest.ChangeServer(o, func(s *driver.Server) { s.Disruption = cause })
}

// wantEvent checks that an event has a kind, a reason and a text. None is wanted if the reason is
// empty.
func wantEvent(t *testing.T, got *pendingEvent, kind, reason, text string) {
	t.Helper()
	switch {
	case reason == "" && got != nil:
		t.Errorf("there is an event: %+v", *got)
	case reason != "" && (got == nil || got.kind != kind || got.reason != reason || got.text != text):
		t.Errorf("the event is %+v, want %s %s: %s", got, kind, reason, text)
	}
}

// TestDetectEnd checks which ends of runs have a separate event, and that an action of others on a
// server is not taken for a crash.
func TestDetectEnd(t *testing.T) {
	t.Parallel()
	const byDrain, byDeletion = "the pod was evicted", "the pod was deleted"
	had := func(state driver.State) *framework.VMBuilder {
		return vmtest.ReportedVM().Status(vmtest.WithServer("id-1", state))
	}
	stopping := vmtest.Present(driver.StateStopping)
	tests := map[string]struct {
		vm                 *framework.VMBuilder
		observed           inventory.Observation
		kind, reason, text string
	}{
		"is drained":                       {had(driver.StateRunning), disrupted(stopping, byDrain), corev1.EventTypeNormal, api.EventDisrupted, byDrain},
		"is drained while it boots":        {had(driver.StateStarting), disrupted(stopping, byDrain), corev1.EventTypeNormal, api.EventDisrupted, byDrain},
		"was drained":                      {had(driver.StateRunning), disrupted(vmtest.Ended(0), byDrain), corev1.EventTypeNormal, api.EventDisrupted, "the server ended with code 0, and the pod was evicted"},
		"was drained by force":             {had(driver.StateRunning), disrupted(vmtest.Ended(137), byDrain), corev1.EventTypeNormal, api.EventDisrupted, "the server ended with code 137, and the pod was evicted"},
		"fails by itself":                  {had(driver.StateRunning), vmtest.Ended(1), corev1.EventTypeWarning, api.EventCrashed, "the server ended with code 1"},
		"completes":                        {vm: had(driver.StateRunning), observed: vmtest.Ended(0)},
		"runs, and is not to go":           {vm: had(driver.StateRunning), observed: vmtest.Present(driver.StateRunning)},
		"was reported already":             {vm: had(driver.StateStopping), observed: disrupted(stopping, byDrain)},
		"had ended before":                 {vm: had(driver.StateStopped), observed: disrupted(vmtest.Ended(0), byDrain)},
		"is stopped by Drover":             {vm: had(driver.StateRunning).Status(vmtest.WithOperation(api.OperationStop, time.Second, "")), observed: disrupted(stopping, byDeletion)},
		"is stopped by another leader":     {vm: had(driver.StateRunning).Action(api.ActionStopped), observed: disrupted(stopping, byDeletion)},
		"is restarted by Drover":           {vm: had(driver.StateRunning).Status(vmtest.WithOperation(api.OperationRestart, time.Second, "run-1")), observed: disrupted(stopping, byDeletion)},
		"is removed with its VM":           {vm: had(driver.StateRunning).DeletionTimestamp(vmtest.T0), observed: disrupted(stopping, byDeletion)},
		"is another one than was reported": {vm: vmtest.ReportedVM().Status(vmtest.WithServer("id-0", driver.StateRunning)), observed: disrupted(stopping, byDrain)},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := passOf(tc.vm, tc.observed)
			p.detectEnd()
			wantEvent(t, p.ended, tc.kind, tc.reason, tc.text)
		})
	}
}

// TestFirstCrash checks that a server that fails as soon as it is created gets one event about it.
func TestFirstCrash(t *testing.T) {
	t.Parallel()
	restarting := vmtest.ChangeServer(vmtest.Ended(3), func(s *driver.Server) { s.State = driver.StateRestarting })
	const text = "the server ended with code 3"
	reported := vmtest.ReportedVM().Status(vmtest.WithServer("id-1", driver.StateRestarting))
	for name, tc := range map[string]struct {
		vm           *framework.VMBuilder
		operation    api.OperationType
		observed     inventory.Observation
		reason, text string
	}{
		"is restarted by its engine": {framework.NewVM("vm"), api.OperationCreate, restarting, api.EventCrashed, text},
		"stays off":                  {framework.NewVM("vm"), api.OperationCreate, vmtest.Ended(3), api.EventCrashed, text},
		"takes another's place":      {vmtest.ReportedVM().Status(vmtest.WithServer("id-0", driver.StateRunning)), api.OperationCreate, restarting, api.EventCrashed, text},
		"completes":                  {vm: framework.NewVM("vm"), operation: api.OperationCreate, observed: vmtest.Ended(0)},
		"runs":                       {vm: framework.NewVM("vm"), operation: api.OperationCreate, observed: vmtest.Present(driver.StateRunning)},
		"was reported already":       {vm: reported, observed: restarting},
		"is adopted":                 {vm: framework.NewVM("vm"), operation: api.OperationUpdate, observed: restarting},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := passOf(tc.vm, tc.observed)
			p.decision.Action.Operation = tc.operation
			p.addChangeEvents(&p.base.Status)
			wantEvent(t, p.ended, corev1.EventTypeWarning, tc.reason, tc.text)
		})
	}
}

// TestSuccessEvents checks the events of steps that have their effect after they have returned.
func TestSuccessEvents(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		action       policy.Action
		began        api.OperationType
		state        driver.State
		reason, text string
	}{
		"a creation":                       {policy.Action{Operation: api.OperationCreate}, "", driver.StateStarting, api.EventCreated, "Created server id-1 on pod, host n1"},
		"a creation that waits":            {policy.Action{Operation: api.OperationCreate}, "", driver.StatePending, "", ""},
		"a start":                          {policy.Action{Operation: api.OperationStart}, "", driver.StateStarting, "", ""},
		"an update":                        {policy.Action{Operation: api.OperationUpdate}, "", driver.StateStopped, api.EventUpdated, "Updated server id-1 on pod, host n1"},
		"an update as part of a stop":      {policy.Action{Operation: api.OperationUpdate, FollowsUp: true}, api.OperationStop, driver.StateStopped, api.EventStopped, "Stopped server id-1 on pod, host n1"},
		"an update that the driver wanted": {policy.Action{Operation: api.OperationUpdate, FollowsUp: true}, "", driver.StateStopped, "", ""},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := passOf(vmtest.ReportedVM(), vmtest.ChangeServer(vmtest.Present(tc.state), func(s *driver.Server) { s.Host = "n1" }))
			p.began = tc.began
			p.events = p.successEvents(tc.action, false)
			wantEvent(t, onlyEvent(t, p), corev1.EventTypeNormal, tc.reason, tc.text)
		})
	}
}

// onlyEvent returns the event of a pass, nil if there is none.
func onlyEvent(t *testing.T, p *pass) *pendingEvent {
	t.Helper()
	switch len(p.events) {
	case 0:
		return nil
	case 1:
		return &p.events[0]
	}
	t.Fatalf("there are %d events: %+v", len(p.events), p.events)
	return nil
}

// TestChangeEvents checks the events of changes that the status shows, each once.
func TestChangeEvents(t *testing.T) {
	t.Parallel()
	status := func(reason string, state driver.State, op *api.Operation) api.VirtualMachineStatus {
		return api.VirtualMachineStatus{ObservedGeneration: 2, Reason: reason, Message: "why", Server: &api.ServerStatus{ID: "id-1", State: string(state)}, Operation: op}
	}
	start := &api.Operation{Type: api.OperationStart}
	again := &api.Operation{Type: api.OperationStart, Attempts: 1, Failure: api.FailureExited}
	starting := status(api.ReasonStarting, driver.StateStarting, start)
	tests := map[string]struct {
		before, after      api.VirtualMachineStatus
		kind, reason, text string
	}{
		"has started":               {starting, status(api.ReasonRunning, driver.StateRunning, nil), corev1.EventTypeNormal, api.EventStarted, "Started server id-1 on pod, host n1"},
		"has started again":         {status(api.ReasonStarting, driver.StateStarting, again), status(api.ReasonRunning, driver.StateRunning, again), corev1.EventTypeNormal, api.EventStarted, "Started server id-1 on pod, host n1"},
		"runs on":                   {before: status(api.ReasonRunning, driver.StateRunning, again), after: status(api.ReasonRunning, driver.StateRunning, again)},
		"has proven stable":         {before: status(api.ReasonRunning, driver.StateRunning, again), after: status(api.ReasonRunning, driver.StateRunning, nil)},
		"has completed by update":   {status(api.ReasonUpdating, driver.StateStopping, &api.Operation{Type: api.OperationUpdate}), status(api.ReasonCompleted, driver.StateStopped, nil), corev1.EventTypeNormal, api.ReasonCompleted, "why"},
		"finds no node":             {starting, status(api.ReasonUnschedulable, driver.StateStarting, start), corev1.EventTypeWarning, api.ReasonUnschedulable, "why"},
		"finds no node still":       {before: status(api.ReasonUnschedulable, driver.StateStarting, start), after: status(api.ReasonUnschedulable, driver.StateStarting, start)},
		"is on a node that is lost": {status(api.ReasonRunning, driver.StateRunning, nil), status(api.ReasonUnresponsive, driver.StateRunning, nil), corev1.EventTypeWarning, api.ReasonUnresponsive, "why"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := passOf(vmtest.ReportedVM().Status(func(s *api.VirtualMachineStatus) { *s = tc.after }),
				vmtest.ChangeServer(vmtest.Present(driver.State(tc.after.Server.State)), func(s *driver.Server) { s.Host = "n1" }))
			p.wasStarting = tc.before.Server.State == string(driver.StateStarting)
			p.addChangeEvents(&tc.before)
			wantEvent(t, onlyEvent(t, p), tc.kind, tc.reason, tc.text)
		})
	}
}

// TestStartSoonAfterCreation checks that a server that runs before its creation was reported gets two
// events, and that a server that ran at once gets one.
func TestStartSoonAfterCreation(t *testing.T) {
	t.Parallel()
	for wasStarting, want := range map[bool][]string{true: {api.EventCreated, api.EventStarted}, false: {api.EventCreated}} {
		p := passOf(vmtest.ReportedVM(), vmtest.Present(driver.StateRunning))
		p.events, p.wasStarting = []pendingEvent{{reason: api.EventCreated}}, wasStarting
		p.addChangeEvents(&api.VirtualMachineStatus{Operation: &api.Operation{Type: api.OperationCreate}})
		var got []string
		for _, e := range p.events {
			got = append(got, e.reason)
		}
		assert.True(t, slices.Equal(got, want), "was starting: %t: the events are %v, want %v", wasStarting, got, want)
	}
}

// TestHeldDeletion checks that a deletion that others hold is reported once it lasts, by a condition and an event
// that name the holder, and that passes for it are rare but do not end.
func TestHeldDeletion(t *testing.T) {
	t.Parallel()
	g := newRunning(t, fake.Options{}, framework.NewVM("vm"))
	g.engine.delete = func(func() error) error {
		g.engine.held.Store(true)
		return nil
	}
	g.delete()
	passes := 0
	for end := g.clock.Now().Add(time.Hour); g.clock.Now().Before(end); passes++ {
		result, err := g.pass()
		assert.NoError(t, err)
		assert.Require(t, result.RequeueAfter != 0, "the VM is not looked at again: %+v", g.vm().Status)
		g.clock.Step(result.RequeueAfter)
	}
	const most = 40 // after waits that double up to 5 minutes, and a few for the stop
	assert.True(t, passes <= most, "it was looked at %d times in an hour", passes)
	blocked, op := meta.FindStatusCondition(g.vm().Status.Conditions, api.ConditionDeletionBlocked), g.vm().Status.Operation
	if blocked == nil || blocked.Reason != api.ReasonDeletionHeld || !strings.HasPrefix(blocked.Message, "the disk is held by backup.example/hold; checked again at ") {
		t.Errorf("DeletionBlocked is %+v", blocked)
	}
	assert.True(t, op != nil && op.NextRetryTime != nil, "the operation lacks the time of its next try: %+v", op)
	held := slices.DeleteFunc(g.eventTexts(), func(e string) bool { return !strings.Contains(e, api.ReasonDeletionHeld) })
	assert.True(t, len(held) == 1 && strings.Contains(held[0], "backup.example/hold"), "the events about it are %v", held)
}
