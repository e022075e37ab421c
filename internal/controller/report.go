// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

const (
	// maxText, maxAddresses and maxPorts bound the status, as the CRD does.
	maxText      = 4096
	maxAddresses = 64
	maxPorts     = 64
	// progressPeriod is the least time between two writes that only report
	// progress, such as a pull's.
	progressPeriod = 2 * time.Second
	// restartPeriod is the least time between two writes while the engine itself
	// restarts the server.
	restartPeriod = 10 * time.Second
)

// report writes the status if it changed, and then emits the events. A change that
// can wait is delayed.
func (p *reconciliation) report(ctx context.Context) (ctrl.Result, error) {
	now := p.r.Clock.Now()
	if p.decision.Action.Step != StepNone {
		p.decision.Wake = now // the next pass continues
	}
	if p.decision.Status.Unchanged {
		return requeueAt(now, p.decision.Wake), nil
	}
	next := p.newStatus(now)
	if until := throttleUntil(&p.base.Status, &next, p.done != "" || len(p.events) > 0, now); now.Before(until) {
		return requeueAt(now, earliest(until, p.decision.Wake)), nil
	}
	before := p.base.Status
	if err := p.writeStatus(ctx); err != nil {
		return ctrl.Result{}, err
	}
	p.emitEvents(&before)
	p.unreported = false
	return requeueAt(now, p.decision.Wake), nil
}

// writeStatus writes the pass's status to the API if it differs there in more than its
// time. The record of what was done is written even if ctx has ended.
func (p *reconciliation) writeStatus(ctx context.Context) error {
	now := p.r.Clock.Now()
	next := p.newStatus(now)
	if equality.Semantic.DeepEqual(&next, &p.base.Status) {
		return nil
	}
	stamp := metav1.NewMicroTime(now)
	next.LastUpdateTime = &stamp
	if err := p.r.mayReport(); err != nil {
		return err
	}
	vm := p.base.DeepCopy()
	vm.Status = next
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if err := p.r.Client.Status().Update(ctx, vm); err != nil {
		return err
	}
	p.r.writes.recordWrite(vm)
	p.base, p.vm, p.baseLive = vm, vm.DeepCopy(), true
	p.r.facts.update(p.vm, p.seen.Observation, now) // an operation that begins with this write began now
	return nil
}

// awaitOutcome returns the outcome of an action. If it takes longer than
// progressDelay, the status reports what is under way. If that write fails, the
// pass's last write reports it.
func (p *reconciliation) awaitOutcome(ctx context.Context, result <-chan outcome) outcome {
	timer := p.r.Clock.NewTimer(progressDelay)
	defer timer.Stop()
	select {
	case o := <-result:
		return o
	case <-timer.C():
	}
	if err := p.writeStatus(ctx); err != nil {
		logf.FromContext(ctx).V(1).Info("Progress not written", "cause", err.Error())
	}
	return <-result
}

// writeIntent records the operation before it is taken, so that after a crash
// another process can tell whether it was. It fails with a conflict if the object
// was changed meanwhile.
func (p *reconciliation) writeIntent(ctx context.Context) error {
	before, op := p.vm.Status.Operation, p.newOperation()
	op.Run, op.RestartedAt = p.decision.Action.EndRun, p.vm.Spec.RestartedAt
	p.vm.Status.Operation = op
	err := p.writeStatus(ctx)
	if err != nil {
		p.vm.Status.Operation = before // what is not recorded is not begun
	}
	return err
}

// mayReport returns an error if this process may not write a status, so that a
// deposed leader does not report an outdated state.
func (r *Reconciler) mayReport() error {
	if err := r.MayAct(); err != nil {
		return driver.Errorf(driver.ErrNotLeading, "nothing was written: %w", err)
	}
	return nil
}

// newStatus returns the status to write: a function of the current status, the plan
// and the observation.
func (p *reconciliation) newStatus(now time.Time) api.VirtualMachineStatus {
	base, intent := &p.base.Status, p.decision.Status
	next := *p.vm.Status.DeepCopy()
	next.ObservedGeneration = p.vm.Generation
	next.Phase, next.Reason, next.Message = intent.Phase, intent.Reason, truncate(intent.Message)
	if p.r.Driver != "" && IsBound(p.vm) {
		next.Driver = p.r.Driver
	}
	if intent.RestartHandled {
		next.RestartedAt = p.vm.Spec.RestartedAt
	}
	next.Operation = p.statusOperation()
	next.PendingFields, next.RefusedField = intent.Pending, intent.Refused
	if p.isObserved() {
		p.copyServerState(&next)
	}
	if next.Binding == nil && IsBound(p.vm) && p.isObserved() && p.r.checkOtherDrivers(p.vm) == nil {
		next.Binding = new(BindingOf(p.vm))
	}
	next.Conditions = slices.Clone(base.Conditions)
	p.setConditions(&next.Conditions, now)
	return next
}

// isObserved reports whether the VirtualMachine's engine has answered.
func (p *reconciliation) isObserved() bool {
	return !p.decision.Status.Unobserved && p.seen.Answer != inventory.Unknown
}

// statusOperation returns the status's operation while it continues, and also while it is
// unknown whether it does.
func (p *reconciliation) statusOperation() *api.Operation {
	have, wanted := p.vm.Status.Operation, p.decision.Action.Operation
	blind := p.decision.Status.Unobserved || p.decision.Status.Reason == api.ReasonDuplicate
	switch {
	case have != nil && (have.Type == wanted || wanted == "" && blind):
		return withNextTry(have, p.decision.NextTry)
	case wanted == "":
		return nil
	}
	return p.newOperation()
}

// withNextTry corrects the time of the next try if it was written by another
// process's clock.
func withNextTry(op *api.Operation, at time.Time) *api.Operation {
	if at.IsZero() || op.NextRetryTime == nil || op.NextRetryTime.Sub(at).Abs() < time.Second {
		return op
	}
	op = op.DeepCopy()
	op.NextRetryTime = new(metav1.NewMicroTime(at))
	return op
}

// copyServerState copies what was observed of the server.
func (p *reconciliation) copyServerState(next *api.VirtualMachineStatus) {
	next.Server, next.Addresses, next.Ports = p.serverStatus(), nil, nil
	if p.seen.Answer != inventory.Present {
		return
	}
	server := p.seen.Server
	next.Addresses = server.Addresses[:min(len(server.Addresses), maxAddresses)]
	next.Ports = portStatuses(p.vm.Spec.Ports, server.Ports[:min(len(server.Ports), maxPorts)])
	if server.StartedAt.IsZero() {
		return
	}
	started := metav1.NewMicroTime(server.StartedAt.Truncate(time.Microsecond))
	if next.StartTime != nil && !next.StartTime.Equal(&started) {
		next.RestartCount++
	}
	next.StartTime = &started
}

// portStatuses gives open ports the names that the spec has for them.
func portStatuses(asked []api.Port, open []driver.Port) []api.PortStatus {
	var all []api.PortStatus
	unused := slices.Clone(asked)
	for _, o := range open {
		next := api.PortStatus{Protocol: api.Protocol(o.Protocol), Port: o.Port, HostPort: o.HostPort, HostIP: o.HostIP}
		n := indexOf(unused, next, o.HostPort)
		if n < 0 {
			n = indexOf(unused, next, 0)
		}
		if n >= 0 {
			next.Name = unused[n].Name
			unused = slices.Delete(unused, n, n+1)
		}
		all = append(all, next)
	}
	return all
}

func indexOf(asked []api.Port, open api.PortStatus, hostPort int32) int {
	return slices.IndexFunc(asked, func(p api.Port) bool {
		return p.Protocol == open.Protocol && p.Port == open.Port && p.HostPort == hostPort
	})
}

// serverStatus returns the server as observed. Usage that moved by less than a
// point keeps its figures, so that it alone causes no write.
func (p *reconciliation) serverStatus() *api.ServerStatus {
	have, seen := p.base.Status.Server, p.seen
	if seen.Answer != inventory.Present {
		return nil
	}
	var stopped string
	if p.decision.Status.StoppedBySpec || p.stoppedRun == seen.Server.Run || p.vm.Status.Server != nil && p.vm.Status.Server.StoppedRun == seen.Server.Run {
		stopped = seen.Server.Run
	}
	next := &api.ServerStatus{
		ID: seen.Server.ID, State: string(seen.Server.State), Generation: p.shown, StoppedRun: stopped,
		ImageID: seen.Server.ImageID, Accelerator: seen.Server.Accelerator,
	}
	var shown *api.Usage
	if have != nil && have.ID == next.ID {
		shown = have.Usage
	}
	switch up := seen.Server.State == driver.StateRunning || seen.Server.State == driver.StatePaused; {
	case !up:
	case seen.Rates == nil:
		next.Usage = shown
	case shown != nil && !seen.Rates.Moved(inventory.Rates{CPU: shown.CPU, Memory: shown.Memory}):
		next.Usage = shown
	default:
		next.Usage = &api.Usage{CPU: roundRate(seen.Rates.CPU), Memory: roundRate(seen.Rates.Memory)}
	}
	return next
}

// roundRate rounds to 0.01.
func roundRate(f float64) float64 { return math.Round(f*100) / 100 }

func (p *reconciliation) setConditions(all *[]metav1.Condition, now time.Time) {
	intent := p.decision.Status
	set := func(kind string, status metav1.ConditionStatus, reason, message string) {
		meta.SetStatusCondition(all, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: truncate(message),
			ObservedGeneration: p.vm.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	only := func(wanted bool, kind, reason, message string) {
		if wanted {
			set(kind, metav1.ConditionTrue, reason, message)
		} else {
			meta.RemoveStatusCondition(all, kind)
		}
	}
	unknown := intent.Unobserved || p.seen.Answer == inventory.Unknown
	set(api.ConditionReady, triState(intent.Ready, intent.Phase == api.PhaseUnknown), intent.Reason, intent.Message)
	set(api.ConditionRunning, triState(IsRunning(p.seen.Observation), unknown), p.runningReason(*all), "")
	if unknown {
		set(api.ConditionObserved, metav1.ConditionFalse, intent.Reason, intent.Message)
	} else {
		set(api.ConditionObserved, metav1.ConditionTrue, api.ReasonObserved, "")
	}
	only(len(intent.Pending) > 0, api.ConditionRestartRequired, api.ReasonChangePending, PendingText(intent.Pending))
	only(intent.Blocked, api.ConditionDeletionBlocked, intent.Reason, intent.Message)
	only(intent.Stalled, api.ConditionStalled, intent.Reason, intent.Message)
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

// runningReason returns why the server is on or off. The reason for being off is
// kept until it is on again, whatever else happens: versions before
// status.server.stoppedRun rely on it.
func (p *reconciliation) runningReason(have []metav1.Condition) string {
	offReasons := []string{api.ReasonStoppedAsAsked, api.ReasonCompleted, api.ReasonExited}
	off := p.seen.Answer == inventory.Present && p.seen.Server.State == driver.StateStopped
	known := meta.FindStatusCondition(have, api.ConditionRunning)
	switch {
	case IsRunning(p.seen.Observation) && !p.decision.Status.Unobserved:
		return api.ReasonRunning
	case slices.Contains(offReasons, p.decision.Status.Reason) || known == nil:
		return p.decision.Status.Reason
	case p.decision.Status.Unobserved || p.seen.Answer == inventory.Unknown, off && slices.Contains(offReasons, known.Reason):
		return known.Reason
	}
	return p.decision.Status.Reason
}

func conditionTrue(conditions []metav1.Condition, kind string) bool {
	return meta.IsStatusConditionTrue(conditions, kind)
}

// throttleUntil returns until when a change may wait. Progress may wait, and so may
// what the engine's own restarts change. What Drover did or failed to do, as acted
// says, is reported at once.
func throttleUntil(base, next *api.VirtualMachineStatus, acted bool, now time.Time) time.Time {
	ours := acted || base.Operation != nil && base.Operation.Type == api.OperationRestart
	if base.LastUpdateTime == nil || ours || base.ObservedGeneration != next.ObservedGeneration {
		return time.Time{}
	}
	last := base.LastUpdateTime.Time
	if last.After(now) { // written by another host's clock
		return time.Time{}
	}
	switch {
	case base.Reason == api.ReasonRestarting || next.Reason == api.ReasonRestarting || base.RestartCount != next.RestartCount:
		return last.Add(restartPeriod)
	case base.Phase == next.Phase && base.Reason == next.Reason && next.Reason == api.ReasonFetching:
		return last.Add(progressPeriod)
	}
	return time.Time{}
}

// requeueAt requeues the VirtualMachine for a time, if there is one.
func requeueAt(now, at time.Time) ctrl.Result {
	if at.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(at.Sub(now), time.Millisecond)}
}

// earliest returns the earlier of two times, of which the second may be zero.
func earliest(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}

// truncate cuts a text to what the CRD allows.
func truncate(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText-len("...")], "") + "..."
}
