// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// pendingEvent is an event that is sent after the status is written.
type pendingEvent struct {
	kind, reason, action, text string
}

var successReasons = map[api.OperationType]string{
	api.OperationCreate:  api.EventCreated,
	api.OperationStart:   api.EventStarted,
	api.OperationStop:    api.EventStopped,
	api.OperationPause:   api.EventPaused,
	api.OperationResume:  api.EventResumed,
	api.OperationRestart: api.EventRestarted,
	api.OperationUpdate:  api.EventUpdated,
}

// successEvents returns the event of an action, if the action is complete. A creation is complete before the
// server runs, because the start may take long in a cluster; the start has an event itself.
func (p *pass) successEvents(action policy.Action, existed bool) []pendingEvent {
	reason, server := successReasons[action.Operation], p.observed.Server
	isCreated := action.Operation == api.OperationCreate && server.State == driver.StateStarting
	if action.Operation == api.OperationUpdate {
		reason = p.updateReason(action.FollowsUp)
	}
	isIncomplete := isUnderWay(p.observed.Observation) && !isCreated || startsLater(action.Operation, p.observed.Observation)
	if reason == "" || isIncomplete || p.vm.DeletionTimestamp != nil {
		return nil
	}
	if action.Operation == api.OperationCreate && !existed && p.base.Status.StartTime != nil {
		reason = api.EventRecreated
	}
	text := fmt.Sprintf("%s server %s on %s", reason, shortID(server.ID), p.r.Driver)
	if server.Host != "" {
		text += ", host " + server.Host
	}
	return []pendingEvent{{corev1.EventTypeNormal, reason, string(action.Operation), text}}
}

// updateReason returns the reason of the event of an update, or "" if the update needs no event.
func (p *pass) updateReason(followsUp bool) string {
	switch {
	case p.base.Status.ObservedGeneration < 1:
		return api.EventAdopted
	case p.began == api.OperationStop && p.observed.Server.State == driver.StateStopped:
		return api.EventStopped // the update was part of the stop
	case followsUp:
		return ""
	}
	return api.EventUpdated
}

func failureEvent(operation api.OperationType, err error) pendingEvent {
	return pendingEvent{corev1.EventTypeWarning, reasonOf(err), string(operation), fmt.Sprintf("%s: %v", operation, err)}
}

// observedReasons has the reasons that cause an event when a status begins to have them, with the type of the event.
var observedReasons = map[string]string{
	api.ReasonCompleted:         corev1.EventTypeNormal,
	api.ReasonExited:            corev1.EventTypeWarning,
	api.ReasonDuplicate:         corev1.EventTypeWarning,
	api.ReasonUnknownDriver:     corev1.EventTypeWarning,
	api.ReasonEngineMismatch:    corev1.EventTypeWarning,
	api.ReasonEngineUnavailable: corev1.EventTypeWarning,
	api.ReasonUnresponsive:      corev1.EventTypeWarning,
	api.ReasonUnschedulable:     corev1.EventTypeWarning,
	api.ReasonDeletionHeld:      corev1.EventTypeWarning,
	api.ReasonVolumeDeleting:    corev1.EventTypeWarning,
}

// addChangeEvents adds the events of changes in the status that no step of this pass made:
// an operation that has completed, and a new reason of observedReasons.
func (p *pass) addChangeEvents(before *api.VirtualMachineStatus) {
	p.detectFirstCrash(before)
	after := &p.base.Status
	op := before.Operation
	isOver := op != nil && after.Operation == nil && op.Failure != api.FailureExited && !isPartOfEnd(op, before, after)
	switch {
	case p.operation != "":
	case isOver && len(p.events) == 0 && successReasons[op.Type] != "":
		p.events = p.successEvents(policy.Action{Operation: op.Type}, true)
	case p.hasStarted(op):
		p.events = append(p.events, p.successEvents(policy.Action{Operation: api.OperationStart}, true)...)
	}
	if kind := observedReasons[after.Reason]; kind != "" && before.Reason != after.Reason {
		p.events = append(p.events, pendingEvent{kind, after.Reason, "Observe", after.Message})
	}
}

// isPartOfEnd reports whether an update was a part of the end of a run: driver pod ends the other containers of a pod
// once its machine has ended. Users have changed nothing.
func isPartOfEnd(op *api.Operation, before, after *api.VirtualMachineStatus) bool {
	return op.Type == api.OperationUpdate && before.Reason != after.Reason && after.Reason == api.ReasonCompleted
}

// hasStarted reports whether the server runs now and was starting when the pass began, after a creation or after
// an end by itself. The operation does not tell: the event of the creation may still be due, and an operation
// that counts starts lasts until the run is stable.
func (p *pass) hasStarted(op *api.Operation) bool {
	isStart := op == nil || op.Type == api.OperationCreate || op.Type == api.OperationStart
	return isStart && p.wasStarting && p.observed.IsRunning()
}

// detectEnd sets f.ended if the server was last reported as on, and its run has ended or is ending without
// Drover: because the server has failed by itself, or because others end it.
func (f *facts) detectEnd() {
	had, server := f.vm.Status.Server, f.observed.Server
	switch {
	case had == nil || had.ID != server.ID || isEnding(driver.State(had.State)) || f.isEndedByDrover():
	case server.Disruption != "" && isEnding(server.State):
		f.ended = f.disruptionEvent()
	case isEnding(server.State):
		f.ended = crashEvent(server)
	}
}

// disruptionEvent returns the event of a run that others end or have ended. It returns nil if the spec wants the
// server stopped: then Drover may have ended the run without having reported it yet.
func (f *facts) disruptionEvent() *pendingEvent {
	server := f.observed.Server
	if f.vm.Spec.Action == api.ActionStopped {
		return nil
	}
	text := server.Disruption
	if server.Exit != nil {
		text = policy.EndText(translate.Server(&server))
	}
	return &pendingEvent{corev1.EventTypeNormal, api.EventDisrupted, "Observe", text}
}

// crashEvent returns the event of a server that has failed by itself, or nil if the server has not failed.
func crashEvent(server driver.Server) *pendingEvent {
	if server.Exit == nil || server.Exit.Code == 0 || server.Exit.ByHost() {
		return nil
	}
	text := policy.EndText(translate.Server(&server))
	if server.Exit.Output != "" {
		text += ": " + server.Exit.Output
	}
	return &pendingEvent{corev1.EventTypeWarning, api.EventCrashed, "Observe", text}
}

// detectFirstCrash sets p.ended if this pass has created the server and the server has failed at once. detectEnd
// finds only the ends of runs that a status has reported as on.
func (p *pass) detectFirstCrash(before *api.VirtualMachineStatus) {
	server, isNew := p.observed.Server, before.Server == nil || before.Server.ID != p.observed.Server.ID
	if p.ended == nil && isNew && p.decision.Action.Operation == api.OperationCreate && hasEnded(server.State) && !p.isEndedByDrover() {
		p.ended = crashEvent(server)
	}
}

// isEnding reports whether the run of a server in this state has ended or is ending.
func isEnding(s driver.State) bool { return hasEnded(s) || s == driver.StateStopping }

// hasEnded reports whether the run of a server in this state has ended.
func hasEnded(s driver.State) bool { return s == driver.StateStopped || s == driver.StateRestarting }

// isEndedByDrover reports whether Drover has ended the server's run, or is ending it.
func (f *facts) isEndedByDrover() bool {
	op := f.vm.Status.Operation
	restarted := op != nil && op.Type == api.OperationRestart && op.Run == f.observed.Server.Run
	return restarted || f.vm.DeletionTimestamp != nil || policy.IsStoppedByDrover(translate.Status(&f.vm.Status), f.observed.Server.Run)
}

// emitEvents sends the events of the pass.
func (p *pass) emitEvents(before *api.VirtualMachineStatus) {
	p.addChangeEvents(before)
	for _, e := range p.allEvents() {
		p.r.Recorder.Eventf(p.base, nil, e.kind, e.reason, e.action, "%s", truncateEvent(e.text))
	}
	p.events, p.ended = nil, nil
}

// allEvents returns the event of the observation, then the events of the actions.
func (f *facts) allEvents() []pendingEvent {
	if f.ended == nil {
		return f.events
	}
	return append([]pendingEvent{*f.ended}, f.events...)
}

// truncateEvent truncates a text to the 1 kB that the events API accepts.
func truncateEvent(text string) string {
	const most = 1024
	if len(text) > most {
		return text[:most-3] + "..."
	}
	return text
}

// shortID returns the beginning of a long ID. It does not cut the ID of a pod, which is the pod's namespace and name.
func shortID(id string) string {
	const most = 12
	if len(id) > most && !strings.Contains(id, "/") {
		return id[:most]
	}
	return id
}

// ReportFinding emits an event for a finding of an orphan sweep.
func (r *Reconciler) ReportFinding(f inventory.Finding) {
	if f.Frozen {
		r.Recorder.Eventf(clusterNamespace(), nil, corev1.EventTypeWarning, api.EventOrphanSweepFrozen, "Sweep", "%s", truncateEvent(f.Message))
		return
	}
	reason := api.EventOrphanFound
	switch {
	case f.Deleted:
		reason = api.EventOrphanDeleted
	case f.Released:
		reason = api.EventOrphanReleased
	}
	vm := &api.VirtualMachine{}
	vm.Namespace, vm.Name, vm.UID = f.Server.Namespace, f.Server.Name, f.Server.UID
	r.Recorder.Eventf(vm, nil, corev1.EventTypeWarning, reason, "Sweep", "server %s on %s: %s", shortID(f.Server.ID), r.Driver, f.Message)
}

// clusterNamespace returns the namespace that stands for the cluster, for events without an object.
func clusterNamespace() *corev1.Namespace {
	ns := &corev1.Namespace{}
	ns.Name = "kube-system"
	return ns
}
