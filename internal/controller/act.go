// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logf "sigs.k8s.io/controller-runtime/pkg/log"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// act carries out the plan's step and records its outcome. It reports done when the
// finalizer is gone. It returns an error if the API failed, if this process may not
// act, or if a restart cannot be begun; then the pass does not report either. Other
// engine errors are recorded in the pass.
func (r *Reconciler) act(ctx context.Context, p *reconciliation) (done bool, err error) {
	if p.decision.Action.Step == stepFinish {
		return r.finish(ctx, p)
	}
	if p.decision.Action.RecordFirst {
		if written, err := r.recordIntent(ctx, p); !written || err != nil {
			return false, err
		}
	}
	if confirmed, err := r.confirm(ctx, p); !confirmed || err != nil {
		return false, err
	}
	result := r.call(ctx, p)
	p.acted = true
	if driver.MayNotAct(result.err) {
		return false, result.err
	}
	p.recordOutcome(ctx, result)
	return false, nil
}

// confirm verifies what a step depends on: the object and, for a creation, that the
// engine has no server. Caches may lag behind users and behind a predecessor, which
// may have finished with the object or created the server. Once per pass is enough,
// since later writes fail with a conflict. If confirmed is false the pass decides
// again.
func (r *Reconciler) confirm(ctx context.Context, p *reconciliation) (confirmed bool, err error) {
	if !p.live {
		if err := r.confirmObject(ctx, p); err != nil {
			return false, err
		}
		p.live = true
	}
	if p.confirmed || p.decision.Action.Step != stepEnsure || p.decision.Action.Operation != api.OperationCreate {
		return true, nil
	}
	p.confirmed = true
	if !p.fresh {
		if err := p.refreshObservation(ctx); err != nil {
			p.recordFailure(p.decision, err)
			return false, nil
		}
	}
	if p.seen.Answer != inventory.Gone {
		return false, nil
	}
	if err := r.checkElsewhere(p.vm); err != nil {
		p.recordFailure(p.decision, err)
		return false, nil
	}
	return true, nil
}

// checkElsewhere refuses a creation while another driver's engine is known to have
// a server of the VirtualMachine. That happens if a binding was lost or forged
// before the first status write. Such a binding does not enter the status.
func (r *Reconciler) checkElsewhere(vm *api.VirtualMachine) error {
	for _, inv := range r.All {
		if inv == r.Inventory {
			continue
		}
		if seen := inv.Get(vm.UID); seen.Answer == inventory.Present {
			return driver.WithReason(api.ReasonEngineMismatch, driver.Errorf(driver.ErrRetry,
				"driver %s has the server %s of this VirtualMachine: set the annotation %s to %s/%s, or remove that server",
				inv.Name, seen.Server.ID, api.AnnotationBound, inv.Name, seen.EngineID))
		}
	}
	return nil
}

// confirmObject verifies by a live read that the object is as the pass has it.
func (r *Reconciler) confirmObject(ctx context.Context, p *reconciliation) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	now := &api.VirtualMachine{}
	err := r.Live.Get(ctx, keyOf(p.base), now)
	switch {
	case err != nil:
		return err
	case now.UID != p.base.UID:
		return apierrors.NewNotFound(api.Resource("virtualmachines"), p.base.Name)
	case now.ResourceVersion != p.base.ResourceVersion:
		r.recent.remember(now)
		return apierrors.NewConflict(api.Resource("virtualmachines"), p.base.Name, errors.New("the cache is behind"))
	}
	return nil
}

// outcome is the result of a call. It is partial if the driver could not be shown
// all of the spec.
type outcome struct {
	err     error
	server  driver.Server
	partial bool
}

// call runs the step. If it is not over after progressDelay, the status reports
// what is under way. If that write fails, the pass's last write reports it.
func (r *Reconciler) call(ctx context.Context, p *reconciliation) outcome {
	result := make(chan outcome, 1)
	vm, decision, target := p.vm.DeepCopy(), p.decision, p.target()
	go func() { result <- r.callDriver(ctx, vm, decision, target) }()
	timer := r.Clock.NewTimer(progressDelay)
	defer timer.Stop()
	select {
	case o := <-result:
		return o
	case <-timer.C():
	}
	if err := r.write(ctx, p); err != nil {
		logf.FromContext(ctx).V(1).Info("Progress not written", "cause", err.Error())
	}
	return <-result
}

// recordIntent records the run that a restart must end, and the value that it
// answers. First the engine must confirm that this is the current run: an older one
// would look as if it had been ended already. Otherwise the pass decides again.
func (r *Reconciler) recordIntent(ctx context.Context, p *reconciliation) (written bool, err error) {
	run := p.decision.Action.EndRun
	if !p.fresh {
		if err := p.refreshObservation(ctx); err != nil {
			return false, err // a failure in the status would name the run
		}
	}
	if p.seen.Answer != inventory.Present || p.seen.Server.Run != run {
		return false, nil
	}
	return true, r.writeIntent(ctx, p)
}

// writeIntent records the operation before it is taken, so that after a crash
// another process can tell whether it was. It fails with a conflict if the object
// was changed meanwhile.
func (r *Reconciler) writeIntent(ctx context.Context, p *reconciliation) error {
	before, op := p.vm.Status.Operation, p.newOperation()
	op.Run, op.RestartedAt = p.decision.Action.EndRun, p.vm.Spec.RestartedAt
	p.vm.Status.Operation = op
	err := r.write(ctx, p)
	if err != nil {
		p.vm.Status.Operation = before // what is not recorded is not begun
	}
	return err
}

// callDriver calls the driver. A call that has begun runs to its end even if the
// controller is stopping.
func (r *Reconciler) callDriver(ctx context.Context, vm *api.VirtualMachine, decision Decision, target driver.Target) outcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
	defer cancel()
	if decision.Action.Step == stepDelete {
		err := r.Inventory.Delete(ctx, target, decision.Action.Retain)
		if errors.Is(err, driver.ErrNotFound) {
			err = nil
		}
		return outcome{err: err}
	}
	spec := serverSpec(vm)
	spec.Target, spec.Power, spec.StopBy, spec.RestartRun = target, decision.Action.Power, decision.Action.StopBy, decision.Action.EndRun
	hidden := r.resolveSecrets(ctx, vm, &spec)
	if hidden != nil && !powerOnly[decision.Action.Operation] {
		return outcome{err: hidden}
	}
	spec.PowerOnly = hidden != nil
	server, err := r.Inventory.Ensure(ctx, spec)
	return outcome{err: err, server: server, partial: hidden != nil}
}

// target returns the server that the plan was made for. If there is another one by
// now, or none, the driver refuses.
func (p *reconciliation) target() driver.Target {
	t := driver.Target{UID: p.vm.UID, Epoch: p.r.Epoch()}
	if p.seen.Answer == inventory.Present {
		t.ID = p.seen.Server.ID
	}
	return t
}

// powerOnly are the operations that need only the power state of the spec, so that
// a missing Secret does not block them.
var powerOnly = map[api.OperationType]bool{api.OperationStop: true, api.OperationPause: true, api.OperationResume: true}

func (r *Reconciler) resolveSecrets(ctx context.Context, vm *api.VirtualMachine, spec *driver.ServerSpec) (err error) {
	if spec.UserData, err = r.reveal(ctx, vm.Namespace, "userData", vm.Spec.UserData); err != nil {
		return err
	}
	spec.NetworkData, err = r.reveal(ctx, vm.Namespace, "networkData", vm.Spec.NetworkData)
	return err
}

// recordOutcome records the step's result in the pass. After anything but a clear
// success it asks the engine what exists now.
func (p *reconciliation) recordOutcome(ctx context.Context, o outcome) {
	before, existed, callErr := p.decision, p.seen.Answer == inventory.Present, o.err
	if callErr != nil || before.Action.Step == stepDelete {
		if err := p.refreshObservation(ctx); callErr == nil {
			callErr = err
		}
	} else {
		p.seen, p.fresh = p.r.Inventory.Get(p.vm.UID), false
	}
	if callErr == nil {
		if before.Action.Step == stepEnsure && !o.partial {
			p.recordShown(o.server)
		}
		p.recordSuccess(before, existed)
		p.decideStep() //nolint:contextcheck // a readiness probe outlives the pass that starts it
		if p.decision.Action.Step == before.Action.Step && p.decision.Action.Operation == before.Action.Operation && p.decision.Action.EndRun == before.Action.EndRun {
			callErr = fmt.Errorf("the %s driver reports success, and the server is %s still", p.r.Driver, stateOf(p.seen))
		}
	}
	switch {
	case errors.Is(callErr, driver.ErrNotFound) && !p.missed:
		p.did, p.missed = "", true // the server vanished during the call: decide again
	case callErr != nil:
		p.recordFailure(before, callErr)
	}
}

// recordShown records what the driver answered about the spec that it was shown.
func (p *reconciliation) recordShown(server driver.Server) {
	p.shown = p.vm.Generation
	p.vm.Status.PendingFields, p.vm.Status.RefusedField = server.Pending, nil
	if r := server.Refused; r != nil {
		p.vm.Status.RefusedField = &api.RefusedField{Field: r.Field, Reason: r.Reason, Message: truncate(r.Message)}
	}
}

func stateOf(seen inventory.Observation) string {
	if seen.Answer == inventory.Present {
		return string(seen.Server.State)
	}
	return "not there"
}

// recordSuccess clears the operation's failures from the status. A start that
// follows a short run is counted, since it has yet to prove stable.
func (p *reconciliation) recordSuccess(decision Decision, existed bool) {
	status := &p.vm.Status
	p.did = decision.Action.Operation
	p.noteSuccess(decision, existed)
	op := status.Operation
	if decision.Action.Operation == api.OperationStart && decision.Status.Reason == api.ReasonRestarting {
		attempts := int32(1)
		if op != nil && op.Type == api.OperationStart {
			attempts += op.Attempts
		}
		status.Operation = p.newOperation()
		status.Operation.Type, status.Operation.Attempts = decision.Action.Operation, attempts
		status.Operation.Failure, status.Operation.Reason, status.Operation.LastError = api.FailureExited, decision.Status.Reason, decision.Status.Message
		return
	}
	switch {
	case op == nil || op.Type != decision.Action.Operation:
	case decision.Action.Operation == api.OperationRestart:
		if decision.Status.Reason == api.ReasonRestarting && p.seen.Server.State == driver.StateStopping {
			op.StartedAt = p.now() // the stop has begun, and with it the grace period
		}
	case !isUnderWay(p.seen):
		status.Operation = nil
	}
}

// isUnderWay reports whether the engine is still carrying out a request, so that
// the operation's failures are kept for now.
func isUnderWay(seen inventory.Observation) bool {
	if seen.Answer != inventory.Present {
		return false
	}
	switch seen.Server.State {
	case driver.StatePending, driver.StateStopping, driver.StateStarting, driver.StateRemoving, driver.StateRestarting:
		return true
	case driver.StateRunning, driver.StatePaused, driver.StateStopped:
	}
	return false
}

// recordFailure records the operation's failure in the pass's status, where decide
// finds it. An unreachable engine is not a failure of the operation.
func (p *reconciliation) recordFailure(decision Decision, err error) {
	p.did = ""
	if p.seen.Answer == inventory.Unknown {
		// One failed look does not make the engine unknown.
		if p.seen = p.r.observeServer(p.vm); p.seen.Answer == inventory.Unknown {
			return
		}
	}
	status := &p.vm.Status
	if decision.Status.RestartHandled {
		status.RestartedAt = p.vm.Spec.RestartedAt // the operation that recorded it is replaced by this one
	}
	op := p.failedOperation(decision)
	op.Attempts++
	op.Epoch = p.epoch()
	op.Failure, op.Reason, op.LastError = failureOf(err), reasonOf(err), truncate(err.Error())
	op.NextRetryTime = nil
	if op.Failure != api.FailureRefused || p.vm.DeletionTimestamp != nil {
		next := metav1.NewMicroTime(p.r.Clock.Now().Add(backoff(op.Attempts, op.Failure == api.FailureExhausted)))
		op.NextRetryTime = &next
	}
	status.Operation, status.Server = op, p.serverStatus()
	p.noteFailure(decision.Action.Operation, err)
}

// failedOperation returns the operation that failed, with its earlier attempts.
func (p *reconciliation) failedOperation(decision Decision) *api.Operation {
	op := p.newOperation()
	op.Type, op.Run = decision.Action.Operation, decision.Action.EndRun
	switch have := p.vm.Status.Operation; {
	case have == nil || have.Type != op.Type:
	case have.Generation == op.Generation:
		return have.DeepCopy()
	default:
		op.RestartedAt = have.RestartedAt
	}
	return op
}

// newOperation returns the plan's operation as it begins.
func (p *reconciliation) newOperation() *api.Operation {
	return &api.Operation{Type: p.decision.Action.Operation, Generation: p.vm.Generation, StartedAt: p.now(), Epoch: p.epoch()}
}

func (p *reconciliation) now() metav1.MicroTime { return metav1.NewMicroTime(p.r.Clock.Now()) }

func (p *reconciliation) epoch() int64 { return int64(p.r.Epoch()) } //nolint:gosec // a resourceVersion

// failureOf returns the kind of a failure, which decides when to retry.
func failureOf(err error) api.OperationFailure {
	switch {
	case errors.Is(err, driver.ErrInvalid), errors.Is(err, driver.ErrUnsupported):
		return api.FailureRefused
	case errors.Is(err, driver.ErrExhausted):
		return api.FailureExhausted
	}
	return api.FailureFailed
}

// reasonOf returns the status.reason for an error.
func reasonOf(err error) string {
	if reason := driver.ReasonOf(err); reason != "" {
		return reason
	}
	switch {
	case errors.Is(err, driver.ErrInvalid):
		return api.ReasonInvalid
	case errors.Is(err, driver.ErrUnsupported):
		return api.ReasonUnsupported
	case errors.Is(err, driver.ErrExhausted):
		return api.ReasonExhausted
	}
	return api.ReasonOperationFailed
}
