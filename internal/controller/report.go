// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/policy"
)

const (
	// maxAddresses and maxPorts bound the status, as the CRD does.
	maxAddresses = 64
	maxPorts     = 64
	// progressDelay is how long a step may take before the status reports it.
	progressDelay = 100 * time.Millisecond
	// progressPeriod is how long a change that only reports progress has to last
	// before it is written, and the least time between two writes of one kind of
	// progress, such as a pull's.
	progressPeriod = 2 * time.Second
	// restartPeriod is the least time between two writes while the engine itself
	// restarts the server.
	restartPeriod = 10 * time.Second
)

// reportStatus writes the status if it changed, and then emits the events. A change that
// can wait is delayed. It returns what is known then.
func (r *Reconciler) reportStatus(ctx context.Context, known facts, decision policy.Decision) (facts, ctrl.Result, error) {
	p, now := &pass{r, known, decision}, r.Clock.Now()
	wake := decision.WakeAt
	if decision.Action.Step != policy.StepNone {
		wake = now // the next pass continues
	}
	if decision.Status.Unchanged {
		return known, resultAt(now, wake), nil
	}
	next := p.newStatus(now)
	since := r.stages.foundSince(p.base, &next, now)
	if until := throttleUntil(&p.base.Status, &next, p.operation != "" || len(p.events) > 0, since, now); now.Before(until) {
		return known, resultAt(now, policy.Earliest(until, wake)), nil
	}
	before := p.base.Status
	isOvertaken, err := p.writeStatus(ctx)
	if err != nil {
		result, err := resultForError(err)
		return p.facts, result, err
	}
	p.emitEvents(&before)
	p.unreported = false
	if isOvertaken {
		wake = now
	}
	return p.facts, resultAt(now, wake), nil
}

// writeStatus writes the pass's status to the API if it differs there in more than
// its time. The record of the actions is written even if ctx has ended. It reports whether
// another process has changed the status right after that.
func (p *pass) writeStatus(ctx context.Context) (isOvertaken bool, err error) {
	now := p.r.Clock.Now()
	next := p.newStatus(now)
	if equality.Semantic.DeepEqual(&next, &p.base.Status) {
		return false, nil
	}
	stamp := metav1.NewMicroTime(now)
	next.LastUpdateTime = &stamp
	if err := p.r.mayReport(); err != nil {
		return false, err
	}
	vm := p.base.DeepCopy()
	vm.Status = next
	if isOvertaken, err = p.r.Client.UpdateStatus(ctx, vm); err != nil {
		return false, err
	}
	p.base, p.vm, p.baseLive = vm, vm.DeepCopy(), true
	p.r.times.Update(p.vm, p.observed.Observation, now) // an operation that begins with this write began now
	return isOvertaken, nil
}

// awaitOutcome returns the outcome of an action. If it takes longer than
// progressDelay, the status reports what is under way. If that write fails, the
// pass's last write reports it.
func (s *step) awaitOutcome(ctx context.Context, result <-chan outcome) outcome {
	timer := s.r.Clock.NewTimer(progressDelay)
	defer timer.Stop()
	select {
	case o := <-result:
		return o
	case <-timer.C():
	}
	if next := s.newStatus(s.r.Clock.Now()); isProgress(&s.base.Status, &next) {
		return <-result // report writes it if it lasts
	}
	if _, err := s.writeStatus(ctx); err != nil {
		logf.FromContext(ctx).V(1).Info("Progress not written", "cause", err.Error())
	}
	return <-result
}

// writeIntent records the operation before it is taken, so that after a crash
// another process knows whether it was. It fails with a conflict if the object
// was changed meanwhile.
func (s *step) writeIntent(ctx context.Context) error {
	before, op := s.vm.Status.Operation, s.newOperation()
	op.Run, op.RestartedAt = s.decision.Action.EndRun, restartRequest(s.vm)
	s.vm.Status.Operation = op
	_, err := s.writeStatus(ctx)
	if err != nil {
		s.vm.Status.Operation = before // what is not recorded is not begun
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

// throttleUntil returns until when a change may wait. Progress may wait, and so may
// changes that restarts by the engine make. An action of Drover or its failure, which acted
// tells, is reported at once, and so is until when it waits. But the next stage of a
// creation that goes well, or of a deletion, is reported only if it lasts for
// progressPeriod since it was first seen: thousands that are made or removed at once
// would else be written again for a stage that is over soon.
func throttleUntil(base, next *api.VirtualMachineStatus, acted bool, since, now time.Time) time.Time {
	waits := next.Operation != nil && next.Operation.NextRetryTime != nil
	progresses := !waits && isProgress(base, next)
	ours := acted && !progresses || waits || base.Operation != nil && base.Operation.Type == api.OperationRestart
	if base.LastUpdateTime == nil || ours || base.ObservedGeneration != next.ObservedGeneration {
		return time.Time{}
	}
	if progresses && base.Reason != next.Reason {
		return since.Add(progressPeriod)
	}
	last := base.LastUpdateTime.Time
	if last.After(now) { // written by another host's clock
		return time.Time{}
	}
	switch {
	case isRestarting(base, next):
		return last.Add(restartPeriod)
	case progresses, isFetching(base, next):
		return last.Add(progressPeriod)
	}
	return time.Time{}
}

// isRestarting reports whether a change comes from a restart that the engine makes by itself. A server that was
// starting and no longer is was started by Drover, also after a crash.
func isRestarting(base, next *api.VirtualMachineStatus) bool {
	wasStarting := base.Server != nil && base.Server.State == string(driver.StateStarting)
	if wasStarting && next.Phase != api.PhaseCreating && next.Reason != api.ReasonRestarting {
		return false
	}
	return base.Reason == api.ReasonRestarting || next.Reason == api.ReasonRestarting || base.RestartCount != next.RestartCount
}

// isProgress reports whether a change says only how far a deletion is, or a creation that goes
// well.
func isProgress(base, next *api.VirtualMachineStatus) bool {
	switch {
	case base.Phase != next.Phase:
		return false
	case next.Phase == api.PhaseCreating && (next.Reason == api.ReasonStarting || next.Reason == api.ReasonUnschedulable):
		return base.Reason == api.ReasonCreating || base.Reason == api.ReasonStarting || base.Reason == api.ReasonUnschedulable
	case next.Phase == api.PhaseTerminating:
		return true
	}
	return false
}

// isFetching reports whether a fetch goes on.
func isFetching(base, next *api.VirtualMachineStatus) bool {
	return base.Phase == next.Phase && base.Reason == next.Reason && next.Reason == api.ReasonFetching
}

// resultAt requeues the VirtualMachine for a time, if there is one.
func resultAt(now, due time.Time) ctrl.Result {
	if due.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(due.Sub(now), time.Millisecond)}
}
