// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// note is an event that is sent once the status that it belongs to is written.
type note struct {
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

// noteSuccess remembers what was done, once it is done to its end.
func (p *pass) noteSuccess(plan plan, existed bool) {
	reason := successReasons[plan.operation]
	if reason == "" || underWay(p.seen) || p.vm.DeletionTimestamp != nil {
		return
	}
	if plan.operation == api.OperationUpdate && p.base.Status.ObservedGeneration < 1 {
		reason = api.EventAdopted
	}
	if plan.operation == api.OperationCreate && !existed && p.base.Status.StartTime != nil {
		reason = api.EventRecreated
	}
	text := fmt.Sprintf("%s server %s on %s", reason, shortID(p.seen.Server.ID), p.r.Driver)
	p.notes = append(p.notes, note{corev1.EventTypeNormal, reason, string(plan.operation), text})
}

func (p *pass) noteFailure(operation api.OperationType, err error) {
	p.notes = append(p.notes, note{corev1.EventTypeWarning, reasonOf(err), string(operation), fmt.Sprintf("%s: %v", operation, err)})
}

// notable reasons are told of when the status takes them on.
var notable = map[string]string{
	api.ReasonCompleted:         corev1.EventTypeNormal,
	api.ReasonExited:            corev1.EventTypeWarning,
	api.ReasonDuplicate:         corev1.EventTypeWarning,
	api.ReasonUnknownDriver:     corev1.EventTypeWarning,
	api.ReasonEngineMismatch:    corev1.EventTypeWarning,
	api.ReasonEngineUnavailable: corev1.EventTypeWarning,
}

// noteChange remembers what the new status tells of that no step of this pass
// did: an operation that came to its end, and a reason worth telling.
func (p *pass) noteChange(before *api.VirtualMachineStatus) {
	after := &p.base.Status
	if op := before.Operation; op != nil && after.Operation == nil && p.did == "" && len(p.notes) == 0 && successReasons[op.Type] != "" {
		p.noteSuccess(plan{operation: op.Type}, true)
	}
	if kind := notable[after.Reason]; kind != "" && before.Reason != after.Reason {
		p.notes = append(p.notes, note{kind, after.Reason, "Observe", after.Message})
	}
}

// tell sends the events of the pass.
func (p *pass) tell(before *api.VirtualMachineStatus) {
	p.noteChange(before)
	for _, n := range p.notes {
		p.r.Recorder.Eventf(p.base, nil, n.kind, n.reason, n.action, "%s", clipNote(n.text))
	}
	p.notes = nil
}

// clipNote cuts a text to the 1 kB that the events API takes.
func clipNote(text string) string {
	const most = 1024
	if len(text) > most {
		return text[:most-3] + "..."
	}
	return text
}

func shortID(id string) string {
	const most = 12
	if len(id) > most {
		return id[:most]
	}
	return id
}

// TellFinding returns what an orphan sweep calls: it turns findings into events.
func (r *Reconciler) TellFinding(f inventory.Finding) {
	if f.Frozen {
		r.Recorder.Eventf(clusterNamespace(), nil, corev1.EventTypeWarning, api.EventOrphanSweepFrozen, "Sweep", "%s", clipNote(f.Note))
		return
	}
	reason := api.EventOrphanFound
	if f.Deleted {
		reason = api.EventOrphanDeleted
	}
	vm := &api.VirtualMachine{}
	vm.Namespace, vm.Name, vm.UID = f.Server.Namespace, f.Server.Name, f.Server.UID
	r.Recorder.Eventf(vm, nil, corev1.EventTypeWarning, reason, "Sweep", "server %s on %s: %s", shortID(f.Server.ID), r.Driver, f.Note)
}

// clusterNamespace stands for the cluster in events that belong to no object.
func clusterNamespace() *corev1.Namespace {
	ns := &corev1.Namespace{}
	ns.Name = "kube-system"
	return ns
}
