// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/controller/facttimes"
	"cloudnative.tw/drover/internal/controller/translate"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// recordOutcome records in the pass what came of a step, and reports whether the
// step succeeded.
func (s *step) recordOutcome(existed bool, o outcome) (succeeded bool) {
	switch {
	case o.err == nil:
		if s.decision.Action.Step == policy.StepEnsure && !o.partial {
			s.recordPassedSpec(o.server)
		}
		s.recordSuccess(existed)
		return true
	case errors.Is(o.err, driver.ErrNotFound) && !s.vanished:
		s.operation, s.vanished = "", true // decide again
	default:
		s.recordFailure(o.err)
	}
	return false
}

// recordPassedSpec records what the driver answered about the spec that was passed
// to it.
func (s *step) recordPassedSpec(server driver.Server) {
	s.setObjects(server.Objects)
	s.passedGeneration = s.vm.Generation
	s.vm.Status.PendingFields, s.vm.Status.RefusedField = server.Pending, nil
	if r := server.Refused; r != nil {
		s.vm.Status.RefusedField = &api.RefusedField{Field: r.Field, Reason: r.Reason, Message: translate.Truncate(r.Message)}
	}
}

// setObjects records in the pass's status what the driver returned.
func (s *step) setObjects(objects []driver.Object) {
	if all := translate.ObjectStatuses(objects); !equality.Semantic.DeepEqual(all, s.vm.Status.Objects) {
		s.vm.Status.Objects = all
	}
}

// recordObjects writes objects to the status before the driver creates them, so that after a
// crash another process knows which of that name are the server's. The step is then decided
// again, unless it has failed. The write fails with a conflict if the object was changed meanwhile.
func (s *step) recordObjects(ctx context.Context, first *driver.RecordFirstError) (failure, err error) {
	before, op := s.vm.Status.Objects, s.vm.Status.Operation
	s.setObjects(first.Objects)
	wanted := s.vm.Status.Objects
	if s.decision.Action.ShortRuns > 0 {
		s.countShortRun() // an ephemeral server, whose run has ended, may be gone in the next step
	}
	if s.facts, _, err = s.r.writeStatus(ctx, s.facts, s.decision); err != nil {
		s.vm.Status.Objects, s.vm.Status.Operation = before, op // what is not recorded is not passed to the driver
		return nil, err
	}
	s.unreported = true
	s.recordings++
	switch {
	case !equality.Semantic.DeepEqual(s.vm.Status.Objects, wanted):
		return fmt.Errorf("the API does not keep status.objects as it was written, which the %s driver needs: apply the CRD of this version of Drover", s.r.Driver), nil
	case first.Failure == nil && policy.IsStuck(s.recordings):
		return fmt.Errorf("the %s driver had objects recorded in the status %d times in a row, and made no server of them", s.r.Driver, s.recordings), nil
	}
	return first.Failure, nil
}

// finishDecision records the outcome of the last decision. Of an error of the API server it records
// only the kind, since a proxy or a webhook may have written the text.
func (r *Reconciler) finishDecision(vm *api.VirtualMachine, result decisions.Result, err error) {
	if r.Decisions == nil {
		return
	}
	outcome := decisions.Outcome{At: r.Clock.Now().Round(0).UTC(), Result: result}
	if result == decisions.Ended && !driver.MayNotAct(err) {
		outcome.API = string(cmp.Or(apierrors.ReasonForError(err), "an error"))
	} else {
		outcome.Error = translate.ErrorText(err)
	}
	r.Decisions.Finish(facttimes.KeyOf(vm), outcome)
}

func stateText(observed inventory.Observation) string {
	if observed.Answer == inventory.Present {
		return string(observed.Server.State)
	}
	return "not there"
}

// recordSuccess clears the operation's failures from the status. A start that
// follows a crash is counted, since it has yet to prove stable.
func (s *step) recordSuccess(existed bool) {
	status, action := &s.vm.Status, s.decision.Action
	s.operation, s.recordings = action.Operation, 0
	s.events = append(s.events, s.pass().successEvents(action, existed)...)
	s.recordRestart()
	op := status.Operation
	if startsLater(action.Operation, s.observed.Observation) {
		if op != nil {
			op.NextRetryTime = nil // the engine reports when the start can go on
		}
		return
	}
	if action.ShortRuns > 0 {
		s.countShortRun()
		return
	}
	switch {
	case op == nil || op.Type != action.Operation:
	case action.Operation == api.OperationRestart:
		if action.BeginsStop && s.observed.Server.State == driver.StateStopping {
			op.StartedAt = metav1.NewMicroTime(s.r.Clock.Now()) // the stop has begun, and with it the grace period
		}
	case !isUnderWay(s.observed.Observation):
		status.Operation = nil
	}
}

// countShortRun records that a start follows a short run, whoever has ended that.
func (s *step) countShortRun() {
	op := s.r.newOperation(s.vm, s.decision.Action.Operation)
	op.Type = api.OperationStart
	op.Attempts, op.Run, op.Evicted = s.decision.Action.ShortRuns, s.decision.Action.CrashedRun, s.decision.Action.Evicted
	op.Failure, op.Reason, op.LastError = api.FailureExited, s.decision.Status.Reason, translate.Truncate(s.decision.Status.Message)
	s.vm.Status.Operation = op
}

// isUnderWay reports whether the engine is still carrying out a request, so that the
// failures of the operation still count.
func isUnderWay(observed inventory.Observation) bool {
	if observed.Answer != inventory.Present {
		return false
	}
	switch observed.Server.State {
	case driver.StatePending, driver.StateStopping, driver.StateStarting, driver.StateRemoving, driver.StateRestarting, driver.StateUnknown:
		return true
	case driver.StateRunning, driver.StatePaused, driver.StateStopped:
	}
	return false
}

// startsLater reports whether a requested start has not begun yet, because it waits for an image or until the
// engine has removed the last run.
func startsLater(operation api.OperationType, observed inventory.Observation) bool {
	isStart := operation == api.OperationStart || operation == api.OperationRestart
	return isStart && observed.Answer == inventory.Present && observed.Server.State == driver.StateStopped && observed.Server.Progress != ""
}

// recordFailure records the operation's failure in the pass's status, where the next
// decision finds it. It records nothing while the inventory has the engine as
// unreachable, since the operation has not failed then. Until the inventory has
// noticed an outage, the call counts as a failure. It also records nothing while another engine
// answers, which knows nothing of the server.
func (s *step) recordFailure(err error) {
	s.operation, s.failure = "", err
	if failed := s.observed; failed.Answer == inventory.Unknown {
		s.observeCached() // one failed query does not make the engine unreachable
		if s.observed.Answer == inventory.Gone && s.vm.Status.Server != nil {
			s.observed = failed // the cache may be older than the server, which another leader has created
		}
	}
	if s.observed.Answer == inventory.Unknown || policy.IsOtherEngine(policy.BindingOf(s.vm), s.observed.EngineID) {
		return // the next decision waits for the engine
	}
	status := &s.vm.Status
	s.recordRestart()
	op := s.failedOperation()
	op.Attempts++
	op.Epoch = s.r.leaderEpoch()
	op.Failure, op.Reason, op.LastError = failureOf(err), reasonOf(err), translate.Truncate(err.Error())
	op.NextRetryTime = nil
	if op.Failure != api.FailureRefused || s.vm.DeletionTimestamp != nil {
		next := metav1.NewMicroTime(s.r.Clock.Now().Add(policy.Backoff(op.Attempts, op.Failure == api.FailureExhausted)))
		op.NextRetryTime = &next
	}
	status.Operation, status.Server = op, s.pass().serverStatus()
	s.events = append(s.events, failureEvent(s.decision.Action.Operation, err))
}

// recordRestart records that a restart was done, before another operation takes the place of the one
// that says so.
func (s *step) recordRestart() {
	if s.decision.Status.RestartHandled {
		s.vm.Status.RestartedAt = restartRequest(s.vm)
	}
}

// failedOperation returns the operation that failed, with its earlier attempts. If an operation
// counts starts, it continues to count, with the failure of the action that was to change the run.
func (s *step) failedOperation() *api.Operation {
	op := s.r.newOperation(s.vm, s.decision.Action.Operation)
	op.Run = s.decision.Action.EndRun
	switch have := s.vm.Status.Operation; {
	case facttimes.IsCounting(have) && changesRun(op.Type):
		counting := have.DeepCopy()
		counting.Generation = op.Generation // else the failure would not wait for its next try
		return counting
	case have == nil || have.Type != op.Type:
	case have.Generation == op.Generation:
		return have.DeepCopy()
	default:
		op.RestartedAt = have.RestartedAt
	}
	return op
}

// newOperation returns an operation as the status records it when it begins.
func (r *Reconciler) newOperation(vm *api.VirtualMachine, kind api.OperationType) *api.Operation {
	return &api.Operation{Type: kind, Generation: vm.Generation, StartedAt: metav1.NewMicroTime(r.Clock.Now()), Epoch: r.leaderEpoch()}
}

func (r *Reconciler) leaderEpoch() int64 { return int64(r.Epoch()) } //nolint:gosec // a resourceVersion

// failureOf returns the kind of a failure, on which the time of the next try depends.
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
