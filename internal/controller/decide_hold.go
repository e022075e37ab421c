// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// onHold tells whether a failed operation waits for its next try, or for good.
func onHold(in input) bool {
	op := in.vm.Status.Operation
	if op == nil || op.Type == api.OperationDelete || op.Type == api.OperationRelease || crashWait(&in.vm.Status) || !stillHolds(in) {
		return false
	}
	return conditionTrue(in.vm.Status.Conditions, api.ConditionStalled) || in.now.Before(nextRetry(op))
}

// stillHolds tells whether nothing has come up that ends the wait of a failed
// operation: a new spec, a server that differs from what the last try left, or
// an engine that came back.
func stillHolds(in input) bool {
	status, op := &in.vm.Status, in.vm.Status.Operation
	if in.vm.Generation != op.Generation || !asLeft(status.Server, in.seen) {
		return false
	}
	if op.NextRetryTime == nil {
		return true
	}
	tried := op.NextRetryTime.Add(-backoff(op.Attempts, status.Reason == api.ReasonExhausted))
	return !in.seen.BackSince.After(tried)
}

// nextRetry is the zero time where no next try is planned.
func nextRetry(op *api.Operation) time.Time {
	if op.NextRetryTime == nil {
		return time.Time{}
	}
	return op.NextRetryTime.Time
}

// crashWait tells whether the operation counts quick ends, which decideEnded
// sees to, and not failed calls.
func crashWait(status *api.VirtualMachineStatus) bool {
	return status.Operation.Type == api.OperationStart && status.Reason == api.ReasonRestarting
}

// asLeft tells whether the server is what the status says. No server and one
// that is still being fetched are the same thing here.
func asLeft(left *api.ServerStatus, seen inventory.Observation) bool {
	none := seen.Answer == inventory.Gone || seen.Server.State == driver.StatePending
	if left == nil || left.State == string(driver.StatePending) {
		return none
	}
	return !none && left.ID == seen.Server.ID && left.State == string(seen.Server.State)
}

func decideHold(in input) plan {
	status := &in.vm.Status
	p := plan{phase: api.PhaseFailed, reason: status.Reason}
	if in.seen.Answer == inventory.Present && slices.Contains([]driver.State{driver.StateRunning, driver.StatePaused}, in.seen.Server.State) {
		p.phase = waiting(in, "", "", "").phase
	}
	p.stalled = conditionTrue(status.Conditions, api.ConditionStalled)
	op := status.Operation
	p.operation, p.message, p.wake = op.Type, op.LastError, nextRetry(op)
	return p
}
