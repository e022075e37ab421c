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

// isOnHold reports whether a failed operation waits for its next try. A refused
// operation waits for a new spec or for another leader, which may have other
// settings, such as the allowed registries.
func isOnHold(in input) bool {
	op := in.vm.Status.Operation
	if op == nil || op.Type == api.OperationDelete || op.Type == api.OperationRelease || isCrashing(op) || !isStillWaiting(in) {
		return false
	}
	return op.Failure == api.FailureRefused && op.Epoch == in.epoch || in.now.Before(nextTry(in))
}

// isStillWaiting reports whether nothing has happened that ends the wait of a
// failed operation: a new spec, a server that differs from what the last try left,
// or an engine that came back.
func isStillWaiting(in input) bool {
	op := in.vm.Status.Operation
	if in.vm.Generation != op.Generation || !isAsLeft(in.vm.Status.Server, in.seen) {
		return false
	}
	return op.NextRetryTime == nil || !in.seen.BackSince.After(in.since.failure)
}

// nextTry returns when a failed operation is retried, by this process's clock. It
// is the zero time if no retry is planned.
func nextTry(in input) time.Time {
	op := in.vm.Status.Operation
	if op.NextRetryTime == nil {
		return time.Time{}
	}
	return in.since.failure.Add(backoff(op.Attempts, op.Failure == api.FailureExhausted))
}

// isAsLeft reports whether the server is as the status says. No server and a server
// that is still being fetched count as the same.
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
