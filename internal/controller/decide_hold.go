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

// isOnHold reports whether a failed operation waits for its next try. One that was
// refused waits for a new spec, or for another leader: that one may have other
// settings, such as the registries that it allows.
func isOnHold(in input) bool {
	op := in.vm.Status.Operation
	if op == nil || op.Type == api.OperationDelete || op.Type == api.OperationRelease || isCrashing(op) || !isStillWaiting(in) {
		return false
	}
	return op.Failure == api.FailureRefused && op.Epoch == in.epoch || in.now.Before(nextTry(in))
}

// isStillWaiting reports whether nothing has come up that ends the wait of a failed
// operation: a new spec, a server that differs from what the last try left, or
// an engine that came back.
func isStillWaiting(in input) bool {
	op := in.vm.Status.Operation
	if in.vm.Generation != op.Generation || !isAsLeft(in.vm.Status.Server, in.seen) {
		return false
	}
	return op.NextRetryTime == nil || !in.seen.BackSince.After(in.since.failure)
}

// nextTry is when a failed operation is tried again, by this process's clock. It is
// the zero time where no next try is planned.
func nextTry(in input) time.Time {
	op := in.vm.Status.Operation
	if op.NextRetryTime == nil {
		return time.Time{}
	}
	return in.since.failure.Add(backoff(op.Attempts, op.Failure == api.FailureExhausted))
}

// isAsLeft tells whether the server is what the status says. No server and one
// that is still being fetched are the same thing here.
func isAsLeft(left *api.ServerStatus, seen inventory.Observation) bool {
	none := seen.Answer == inventory.Gone || seen.Server.State == driver.StatePending
	if left == nil || left.State == string(driver.StatePending) {
		return none
	}
	return !none && left.ID == seen.Server.ID && left.State == string(seen.Server.State)
}

func decideHold(in input) plan {
	op := in.vm.Status.Operation
	p := plan{phase: api.PhaseFailed, reason: op.Reason, operation: op.Type, message: op.LastError, wake: nextTry(in), nextTry: nextTry(in)}
	if in.seen.Answer == inventory.Present && slices.Contains([]driver.State{driver.StateRunning, driver.StatePaused}, in.seen.Server.State) {
		p.phase = planWait(in, "", "", "").phase
	}
	p.stalled = op.Failure == api.FailureRefused
	return p
}
