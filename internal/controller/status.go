// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/facttimes"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
)

// newStatus returns the status to write. It depends only on the current status, the decision,
// the observation and now.
func (p *pass) newStatus(now time.Time) api.VirtualMachineStatus {
	base, intent := &p.base.Status, p.decision.Status
	next := *p.vm.Status.DeepCopy()
	next.ObservedGeneration = p.vm.Generation
	next.Phase, next.Reason, next.Message = intent.Phase, intent.Reason, translate.Truncate(intent.Message)
	if p.r.Driver != "" && policy.IsBound(p.vm) {
		next.Driver = p.r.Driver
	}
	if intent.RestartHandled {
		next.RestartedAt = restartRequest(p.vm)
	}
	next.Operation = p.statusOperation()
	next.PendingFields, next.RefusedField = intent.Pending.Names(), nil
	if intent.Refused.Field != "" {
		next.RefusedField = &intent.Refused
	}
	if p.isObserved() {
		p.copyServerState(&next)
	}
	if next.Binding != nil || policy.IsBound(p.vm) && p.isObserved() && p.r.checkOtherDrivers(p.vm) == nil {
		next.Binding = new(policy.BindingOf(p.vm))
	}
	next.Conditions = slices.Clone(base.Conditions)
	p.setConditions(&next.Conditions, now)
	return next
}

// isObserved reports whether the VirtualMachine's engine has answered.
func (p *pass) isObserved() bool {
	return !p.decision.Status.Unobserved && p.observed.Answer != inventory.Unknown
}

// statusOperation returns the operation for the status. The status keeps its operation while the
// operation continues, or while nobody knows whether it continues. An operation that counts starts is
// kept while another operation changes the run, and while others stop the server.
func (p *pass) statusOperation() *api.Operation {
	have, wanted := p.vm.Status.Operation, p.decision.Action.Operation
	unknown := p.decision.Status.Unobserved || p.decision.Status.Reason == api.ReasonDuplicate
	switch {
	case have != nil && (have.Type == wanted || wanted == "" && unknown):
		return withNextTry(have, p.decision.NextTry)
	case facttimes.IsCounting(have) && (changesRun(wanted) || p.decision.Action.EndedByOthers):
		return have
	case wanted == "":
		return nil
	}
	return p.r.newOperation(p.vm, wanted)
}

// changesRun reports whether an operation changes a run without beginning or ending a run.
func changesRun(operation api.OperationType) bool {
	return operation == api.OperationUpdate || operation == api.OperationPause || operation == api.OperationResume
}

// restartRequest returns spec.restartedAt in the form of a status: nil, or whole seconds. With another form, the
// status would differ from the copy in the API server, and would be written again in every pass.
func restartRequest(vm *api.VirtualMachine) *metav1.Time {
	want := vm.Spec.RestartedAt
	if want.IsZero() {
		return nil
	}
	return &metav1.Time{Time: want.Truncate(time.Second)}
}

// withNextTry returns op with the time of the next try. It corrects a time that another process
// has written by another clock.
func withNextTry(op *api.Operation, due time.Time) *api.Operation {
	if due.IsZero() || op.NextRetryTime != nil && op.NextRetryTime.Sub(due).Abs() < time.Second {
		return op
	}
	op = op.DeepCopy()
	op.NextRetryTime = new(metav1.NewMicroTime(due))
	return op
}

// copyServerState copies the observed state of the server to next.
func (p *pass) copyServerState(next *api.VirtualMachineStatus) {
	next.Server, next.Addresses, next.Ports = p.serverStatus(), nil, nil
	if p.observed.Answer != inventory.Present {
		return
	}
	server := p.observed.Server
	next.Addresses = server.Addresses[:min(len(server.Addresses), maxAddresses)]
	next.Ports = translate.PortStatuses(p.vm.Spec.Ports, server.Ports[:min(len(server.Ports), maxPorts)])
	if server.StartedAt.IsZero() {
		return
	}
	started := metav1.NewMicroTime(server.StartedAt.Truncate(time.Microsecond))
	if policy.HasRestarted(translate.MicroTime(next.StartTime), server.StartedAt) {
		next.RestartCount++
		if p.operation == "" && len(next.PendingFields) > 0 {
			// The restart may have applied the pending fields, so the driver must get the spec again.
			next.Server.Generation = 0
		}
	}
	next.StartTime = &started
}

// serverStatus returns the status of the observed server. It keeps a usage that has changed by
// less than a percentage point, so that small changes of the usage do not cause writes.
func (p *pass) serverStatus() *api.ServerStatus {
	have, observed := p.base.Status.Server, p.observed
	if observed.Answer != inventory.Present {
		return nil
	}
	var stopped string
	isStopping := observed.Server.State == driver.StateStopping && p.decision.Action.Operation == api.OperationStop
	if isStopping || p.decision.Status.StoppedBySpec || p.stoppedRun == observed.Server.Run || p.vm.Status.Server != nil && p.vm.Status.Server.StoppedRun == observed.Server.Run {
		stopped = observed.Server.Run
	}
	next := &api.ServerStatus{
		ID: observed.Server.ID, State: string(observed.Server.State), Generation: p.passedGeneration, StoppedRun: stopped,
		ImageID: observed.Server.ImageID, Accelerator: observed.Server.Accelerator,
		Terminated: translate.Terminated(observed.Server.Exit), UnpublishedPorts: observed.Server.UnpublishedPorts,
	}
	var shown *api.Usage
	if have != nil && have.ID == next.ID {
		shown = have.Usage
	}
	up := observed.Server.State == driver.StateRunning || observed.Server.State == driver.StatePaused
	next.Run = p.lastRun(up)
	switch {
	case !up:
	case observed.Rates == nil:
		next.Usage = shown
	case shown != nil && !observed.Rates.DiffersFrom(inventory.Rates{CPU: shown.CPU, Memory: shown.Memory}):
		next.Usage = shown
	default:
		next.Usage = &api.Usage{CPU: roundRate(observed.Rates.CPU), Memory: roundRate(observed.Rates.Memory)}
	}
	return next
}

// lastRun returns the last run of the server that was seen running.
func (p *pass) lastRun(isUp bool) string {
	have := p.base.Status.Server
	switch {
	case isUp:
		return p.observed.Server.Run
	case have == nil:
		return ""
	}
	return have.Run
}

// roundRate rounds a rate to 0.01.
func roundRate(f float64) float64 { return math.Round(f*100) / 100 }

// conditionWriter sets conditions of a status.
type conditionWriter struct {
	all        *[]metav1.Condition
	generation int64
	now        metav1.Time
}

func (w conditionWriter) setCondition(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(w.all, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: translate.Truncate(message),
		ObservedGeneration: w.generation, LastTransitionTime: w.now,
	})
}

// setOnlyIf sets a condition that is either true or absent.
func (w conditionWriter) setOnlyIf(holds bool, kind, reason, message string) {
	if holds {
		w.setCondition(kind, metav1.ConditionTrue, reason, message)
	} else {
		meta.RemoveStatusCondition(w.all, kind)
	}
}

func (p *pass) setConditions(all *[]metav1.Condition, now time.Time) {
	intent := p.decision.Status
	w := conditionWriter{all, p.vm.Generation, metav1.NewTime(now)}
	unknown := intent.Unobserved || p.observed.Answer == inventory.Unknown
	lost := p.observed.Server.State == driver.StateUnknown || p.observed.Server.HostLost
	w.setCondition(api.ConditionReady, triState(intent.Ready, intent.Phase == api.PhaseUnknown), intent.Reason, intent.Message)
	w.setCondition(api.ConditionRunning, triState(p.observed.IsRunning(), unknown || lost), p.runningReason(*all), "")
	if unknown {
		w.setCondition(api.ConditionObserved, metav1.ConditionFalse, intent.Reason, intent.Message)
	} else {
		w.setCondition(api.ConditionObserved, metav1.ConditionTrue, api.ReasonObserved, "")
	}
	w.setOnlyIf(intent.Pending != "", api.ConditionRestartRequired, api.ReasonChangePending, policy.PendingText(p.vm.Spec.Action, intent.Pending))
	w.setOnlyIf(intent.Blocked, api.ConditionDeletionBlocked, intent.Reason, intent.Message)
	w.setOnlyIf(intent.Stalled, api.ConditionStalled, intent.Reason, intent.Message)
	switch known := p.files.Reason; {
	case known != "":
		w.setCondition(api.ConditionFilesCurrent, triState(known == api.ReasonFilesCurrent, false), known, p.files.Message)
	case !unknown && !p.files.IsPending:
		meta.RemoveStatusCondition(all, api.ConditionFilesCurrent)
	}
	if c := p.observed.Server.Confinement; c != nil && !unknown && p.observed.Answer == inventory.Present {
		w.setCondition(api.ConditionConfined, triState(c.Reason == api.ReasonConfined, false), c.Reason, c.Message)
	} else {
		meta.RemoveStatusCondition(all, api.ConditionConfined)
	}
}

func triState(yes, unknown bool) metav1.ConditionStatus {
	switch {
	case unknown:
		return metav1.ConditionUnknown
	case yes:
		return metav1.ConditionTrue
	}
	return metav1.ConditionFalse
}

// runningReason returns why the server is on or off. While the server is off, the reason
// stays, whatever else happens, so that users can still see why it went off.
func (p *pass) runningReason(have []metav1.Condition) string {
	offReasons := []string{api.ReasonStoppedAsAsked, api.ReasonCompleted, api.ReasonExited}
	off := p.observed.Answer == inventory.Present && p.observed.Server.State == driver.StateStopped
	known := meta.FindStatusCondition(have, api.ConditionRunning)
	switch {
	case p.observed.IsRunning() && !p.decision.Status.Unobserved:
		return api.ReasonRunning
	case slices.Contains(offReasons, p.decision.Status.Reason) || known == nil:
		return p.decision.Status.Reason
	case p.decision.Status.Unobserved || p.observed.Answer == inventory.Unknown, off && slices.Contains(offReasons, known.Reason):
		return known.Reason
	}
	return p.decision.Status.Reason
}
