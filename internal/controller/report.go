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
	// maxAddresses and maxPorts are the limits of the CRD for a status.
	maxAddresses = 64
	maxPorts     = 64
	// progressDelay is how long a step may take before the status reports it.
	progressDelay = 100 * time.Millisecond
	// progressPeriod is how long a new stage of progress must last before it is written, and the shortest time
	// between two writes of one kind of progress, such as the progress of a pull.
	progressPeriod = 2 * time.Second
	// restartPeriod is the shortest time between two writes while the engine itself restarts the server.
	restartPeriod = 10 * time.Second
)

// reportStatus writes the status if it changed, then emits the events, and returns the facts
// after the write. It delays a write that can wait.
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
	known, isOvertaken, err := r.writeStatus(ctx, p.facts, decision)
	if err != nil {
		result, err := resultForError(err)
		return known, result, err
	}
	p.facts = known
	p.emitEvents(&before)
	p.unreported = false
	if isOvertaken {
		wake = now
	}
	return p.facts, resultAt(now, wake), nil
}

// writeStatus writes a pass's status, if it differs from the status in the API in more than
// its time. It writes even if ctx has ended, since the status records the actions. It returns the facts
// after the write. isOvertaken reports whether another process has changed the status since the write.
func (r *Reconciler) writeStatus(ctx context.Context, known facts, decision policy.Decision) (_ facts, isOvertaken bool, err error) {
	now := r.Clock.Now()
	next := (&pass{r, known, decision}).newStatus(now)
	if equality.Semantic.DeepEqual(&next, &known.base.Status) {
		return known, false, nil
	}
	stamp := metav1.NewMicroTime(now)
	next.LastUpdateTime = &stamp
	if err := r.mayReport(); err != nil {
		return known, false, err
	}
	vm := known.base.DeepCopy()
	vm.Status = next
	if isOvertaken, err = r.Client.UpdateStatus(ctx, vm); err != nil {
		return known, false, err
	}
	known.base, known.vm, known.baseLive = vm, vm.DeepCopy(), true
	r.times.Update(known.vm, known.observed.Observation, now) // an operation that begins with this write began now
	return known, isOvertaken, nil
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
	if next := s.pass().newStatus(s.r.Clock.Now()); isProgress(&s.base.Status, &next) {
		return <-result // report writes it if it lasts
	}
	var err error
	if s.facts, _, err = s.r.writeStatus(ctx, s.facts, s.decision); err != nil {
		logf.FromContext(ctx).V(1).Info("Progress not written", "cause", err.Error())
	}
	return <-result
}

// writeIntent records the operation before it is taken, so that after a crash
// another process knows whether it was. It fails with a conflict if the object
// was changed meanwhile.
func (s *step) writeIntent(ctx context.Context) (err error) {
	before, op := s.vm.Status.Operation, s.r.newOperation(s.vm, s.decision.Action.Operation)
	op.Run, op.RestartedAt = s.decision.Action.EndRun, restartRequest(s.vm)
	s.vm.Status.Operation = op
	if s.facts, _, err = s.r.writeStatus(ctx, s.facts, s.decision); err != nil {
		s.vm.Status.Operation = before // what is not recorded is not begun
	}
	return err
}

// mayReport returns an error if this process may not write a status. Otherwise a deposed
// leader could report an outdated state.
func (r *Reconciler) mayReport() error {
	if err := r.MayAct(); err != nil {
		return driver.Errorf(driver.ErrNotLeading, "nothing was written: %w", err)
	}
	return nil
}

// throttleUntil returns until when the write of a status may wait, or the zero time if it must not wait.
// Progress may wait, and so may changes that come from restarts by the engine. An action of Drover or its
// failure (acted) must not wait, nor the time of a next try. The next stage of a successful creation, or of a
// deletion, is reported only if it lasts for progressPeriod since it was first seen. Otherwise thousands of
// VirtualMachines that are created or deleted together would each be written again for a stage that ends soon.
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

// isRestarting reports whether a change comes from a restart that the engine makes by itself. A server that has just
// finished starting was started by Drover, possibly after a crash.
func isRestarting(base, next *api.VirtualMachineStatus) bool {
	wasStarting := base.Server != nil && base.Server.State == string(driver.StateStarting)
	if wasStarting && next.Phase != api.PhaseCreating && next.Reason != api.ReasonRestarting {
		return false
	}
	return base.Reason == api.ReasonRestarting || next.Reason == api.ReasonRestarting || base.RestartCount != next.RestartCount
}

// isProgress reports whether a change only says how far a deletion, or a successful creation, has come.
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

// isFetching reports whether a fetch continues.
func isFetching(base, next *api.VirtualMachineStatus) bool {
	return base.Phase == next.Phase && base.Reason == next.Reason && next.Reason == api.ReasonFetching
}

// resultAt returns a result that requeues the VirtualMachine at the time due, unless due is zero.
func resultAt(now, due time.Time) ctrl.Result {
	if due.IsZero() {
		return ctrl.Result{}
	}
	return ctrl.Result{RequeueAfter: max(due.Sub(now), time.Millisecond)}
}
