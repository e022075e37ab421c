// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// onHold tells whether a failed operation waits for its next try, or for good.
// A new spec, a server that differs from what the last try left, and an engine
// that came back end the wait.
func onHold(in input) bool {
	status := &in.vm.Status
	if in.vm.Generation != status.ObservedGeneration || !asLeft(status.Server, in.seen) {
		return false
	}
	if conditionTrue(status.Conditions, api.ConditionStalled) {
		return true
	}
	op := status.Operation
	if op == nil || op.NextRetryTime == nil || op.Type == api.OperationDelete || op.Type == api.OperationRelease || crashWait(status) {
		return false
	}
	tried := op.NextRetryTime.Add(-backoff(op.Attempts, status.Reason == api.ReasonExhausted))
	return in.now.Before(op.NextRetryTime.Time) && !in.seen.BackSince.After(tried)
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
	p := plan{phase: api.PhaseFailed, reason: status.Reason, message: status.Message}
	if in.seen.Answer == inventory.Present && slices.Contains([]driver.State{driver.StateRunning, driver.StatePaused}, in.seen.Server.State) {
		p.phase = waiting(in, "", "", "").phase
	}
	p.stalled = conditionTrue(status.Conditions, api.ConditionStalled)
	if op := status.Operation; op != nil {
		p.operation = op.Type
		p.message = op.LastError
		if op.NextRetryTime != nil {
			p.wake = op.NextRetryTime.Time
		}
	}
	return p
}
