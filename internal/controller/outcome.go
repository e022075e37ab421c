// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
	"cloudnative.tw/drover/internal/policy"
	"cloudnative.tw/drover/internal/policy/decisions"
)

// recordOutcome records in the pass what came of a step, and reports whether the
// step succeeded.
func (p *reconciliation) recordOutcome(decision policy.Decision, existed bool, o outcome) (succeeded bool) {
	switch {
	case o.err == nil:
		if decision.Action.Step == policy.StepEnsure && !o.partial {
			p.recordPassedSpec(o.server)
		}
		p.recordSuccess(decision, existed)
		return true
	case errors.Is(o.err, driver.ErrNotFound) && !p.vanished:
		p.done, p.vanished = "", true // decide again
	default:
		p.recordFailure(decision, o.err)
	}
	return false
}

// recordPassedSpec records what the driver answered about the spec that was passed
// to it.
func (p *reconciliation) recordPassedSpec(server driver.Server) {
	p.setObjects(server.Objects)
	p.passedGeneration = p.vm.Generation
	p.vm.Status.PendingFields, p.vm.Status.RefusedField = server.Pending, nil
	if r := server.Refused; r != nil {
		p.vm.Status.RefusedField = &api.RefusedField{Field: r.Field, Reason: r.Reason, Message: truncate(r.Message)}
	}
}

// finishDecision records what came of the decision. Of an error of the API server only the kind
// is recorded, since its text may be that of something between.
func (p *reconciliation) finishDecision(result decisions.Result, err error) {
	if p.r.Decisions == nil {
		return
	}
	outcome := decisions.Outcome{At: p.r.Clock.Now().Round(0).UTC(), Result: result}
	if result == decisions.Ended && !driver.MayNotAct(err) {
		outcome.API = string(cmp.Or(apierrors.ReasonForError(err), "an error"))
	} else {
		outcome.Error = errorText(err)
	}
	p.r.Decisions.Finish(keyOf(p.base), outcome)
}

func stateText(observed inventory.Observation) string {
	if observed.Answer == inventory.Present {
		return string(observed.Server.State)
	}
	return "not there"
}

// recordSuccess clears the operation's failures from the status. A start that
// follows a crash is counted, since it has yet to prove stable.
func (p *reconciliation) recordSuccess(decision policy.Decision, existed bool) {
	status := &p.vm.Status
	p.done, p.recordings = decision.Action.Operation, 0
	p.addSuccessEvent(decision, existed)
	p.recordRestart(decision)
	op := status.Operation
	if startsLater(decision.Action.Operation, p.observed.Observation) {
		if op != nil {
			op.NextRetryTime = nil // the engine reports when the start can go on
		}
		return
	}
	if decision.Action.ShortRuns > 0 {
		p.countShortRun(decision)
		return
	}
	switch {
	case op == nil || op.Type != decision.Action.Operation:
	case decision.Action.Operation == api.OperationRestart:
		if decision.Action.BeginsStop && p.observed.Server.State == driver.StateStopping {
			op.StartedAt = p.microNow() // the stop has begun, and with it the grace period
		}
	case !isUnderWay(p.observed.Observation):
		status.Operation = nil
	}
}

// countShortRun records that a start follows a run that ended by itself.
func (p *reconciliation) countShortRun(decision policy.Decision) {
	op := p.newOperation()
	op.Type, op.Attempts, op.Run = decision.Action.Operation, decision.Action.ShortRuns, decision.Action.CrashedRun
	op.Failure, op.Reason, op.LastError = api.FailureExited, decision.Status.Reason, truncate(decision.Status.Message)
	p.vm.Status.Operation = op
}

// isUnderWay reports whether the engine is still carrying out a request, so that
// the operation's failures still count.
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

// startsLater reports whether a start that was requested has yet to begin: it waits for an image, or until
// the engine has removed the last run.
func startsLater(operation api.OperationType, observed inventory.Observation) bool {
	isStart := operation == api.OperationStart || operation == api.OperationRestart
	return isStart && observed.Answer == inventory.Present && observed.Server.State == driver.StateStopped && observed.Server.Progress != ""
}

// recordFailure records the operation's failure in the pass's status, where the next
// decision finds it. It records nothing while the inventory has the engine as
// unreachable, since that is no failure of the operation. Until the inventory has
// noticed an outage, the call counts as a failure. Nor does it while another engine
// answers, which knows nothing of the server.
func (p *reconciliation) recordFailure(decision policy.Decision, err error) {
	p.done, p.failure = "", err
	if failed := p.observed; failed.Answer == inventory.Unknown {
		p.observeCached() // one failed query does not make the engine unreachable
		if p.observed.Answer == inventory.Gone && p.vm.Status.Server != nil {
			p.observed = failed // the cache may be older than the server, which another leader has created
		}
	}
	if p.observed.Answer == inventory.Unknown || policy.IsOtherEngine(policy.BindingOf(p.vm), p.observed.EngineID) {
		return // the next decision waits for the engine
	}
	status := &p.vm.Status
	p.recordRestart(decision)
	op := p.failedOperation(decision)
	op.Attempts++
	op.Epoch = p.leaderEpoch()
	op.Failure, op.Reason, op.LastError = failureOf(err), reasonOf(err), truncate(err.Error())
	op.NextRetryTime = nil
	if op.Failure != api.FailureRefused || p.vm.DeletionTimestamp != nil {
		next := metav1.NewMicroTime(p.r.Clock.Now().Add(policy.Backoff(op.Attempts, op.Failure == api.FailureExhausted)))
		op.NextRetryTime = &next
	}
	status.Operation, status.Server = op, p.serverStatus()
	p.addFailureEvent(decision.Action.Operation, err)
}

// recordRestart records that a restart was done, before another operation takes the place of the one
// that says so.
func (p *reconciliation) recordRestart(decision policy.Decision) {
	if decision.Status.RestartHandled {
		p.vm.Status.RestartedAt = restartRequest(p.vm)
	}
}

// failedOperation returns the operation that failed, with its earlier attempts.
func (p *reconciliation) failedOperation(decision policy.Decision) *api.Operation {
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

// newOperation returns the decided operation as it begins.
func (p *reconciliation) newOperation() *api.Operation {
	return &api.Operation{Type: p.decision.Action.Operation, Generation: p.vm.Generation, StartedAt: p.microNow(), Epoch: p.leaderEpoch()}
}

func (p *reconciliation) microNow() metav1.MicroTime { return metav1.NewMicroTime(p.r.Clock.Now()) }

func (p *reconciliation) leaderEpoch() int64 { return int64(p.r.Epoch()) } //nolint:gosec // a resourceVersion

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
