// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

const (
	firstBackoff = time.Second
	maxBackoff   = 5 * time.Minute
	slowBackoff  = 30 * time.Second
	// bindRetry is the delay before another try to bind a VM whose engine was not known in time.
	bindRetry = time.Second
)

// maxRecordings is how many steps in a row may only record the server's objects. A restart needs two:
// it records the end of the last run, and then the objects of the next run.
const maxRecordings = 3

// IsStuck reports whether too many steps in a row only recorded objects, without success or failure. The
// last of these steps then counts as a failure and backs off.
func IsStuck(recordings int) bool { return recordings > maxRecordings }

// isOnHold reports whether a failed operation waits for its next try. A refused operation waits
// for a new spec, for a driver that asks for an Ensure, or for another leader, whose settings,
// such as the allowed registries, may differ.
func isOnHold(in Input) bool {
	op := in.VM.Status.Operation
	if op.Type == "" || op.Type == api.OperationDelete || op.Type == api.OperationRelease || op.Failure == api.FailureExited || !isStillWaiting(in) {
		return false
	}
	return op.Failure == api.FailureRefused && op.Epoch == in.Epoch && !isEnsureDue(in) || in.Now.Before(nextTry(in))
}

// isEnsureDue reports whether the driver has work to do although it refuses the spec: a cleanup, or applying new
// settings of the operator to a running server.
func isEnsureDue(in Input) bool {
	asks := in.Observed.Answer == Present && in.Observed.Server.NeedsEnsure
	return IsCleanupDue(in.Observed) || asks && in.VM.Status.Operation.Failure == api.FailureRefused && in.VM.Status.Operation.Epoch == in.Epoch
}

// IsCleanupDue reports whether a server is off and the driver has to remove the remains of its last run, such
// as the finalizer of a pod that is being deleted. The removal does not depend on the spec.
func IsCleanupDue(observed Observed) bool {
	return observed.Answer == Present && observed.Server.State == StateStopped && observed.Server.NeedsEnsure
}

// isStillWaiting reports whether a failed operation still has to wait for its next try. A new spec,
// a server that has changed since the last try, or an engine that came back ends the wait.
func isStillWaiting(in Input) bool {
	op := in.VM.Status.Operation
	if in.VM.Generation != op.Generation || !IsAsReported(in.VM.Status.Server, in.Observed) {
		return false
	}
	return op.NextRetryTime.IsZero() || !in.Observed.BackSince.After(in.Since.Failure)
}

// nextTry returns when a failed operation is tried again, by this process's clock, or the zero
// time if no retry is planned.
func nextTry(in Input) time.Time {
	op := in.VM.Status.Operation
	if op.NextRetryTime.IsZero() && !isEnsureDue(in) {
		return time.Time{}
	}
	wait := Backoff(op.Attempts, op.Failure == api.FailureExhausted)
	if IsCleanupDue(in.Observed) {
		wait = min(wait, cleanupBackoff(in))
	}
	return in.Since.Failure.Add(wait)
}

// cleanupBackoff returns the wait before the next try of a cleanup. A drain may wait for the cleanup, so failures
// from before the cleanup was due do not delay its first try. After a failed try, the wait is the time from when
// the cleanup became due to the failure, so that each wait is about twice the previous one.
func cleanupBackoff(in Input) time.Duration {
	if !hasCleanupFailed(in) {
		return 0
	}
	return max(firstBackoff, in.Since.Failure.Sub(in.Since.Cleanup))
}

// hasCleanupFailed reports whether the last failed call had to remove the remains of the last run.
func hasCleanupFailed(in Input) bool {
	return IsCleanupDue(in.Observed) && in.VM.Status.Operation.Failure != "" && !in.Since.Failure.Before(in.Since.Cleanup)
}

// IsAsReported reports whether the server is as the status says. A server whose image is still
// being fetched counts as no server.
func IsAsReported(left ServerStatus, observed Observed) bool {
	none := observed.Answer == Gone || observed.Server.State == StatePending
	if left == (ServerStatus{}) || left.State == StatePending {
		return none
	}
	return !none && left.ID == observed.Server.ID && left.State == observed.Server.State
}

func decideHold(in Input) Decision {
	op := in.VM.Status.Operation
	d := Decision{Action: Action{Operation: op.Type}, Status: StatusIntent{Phase: api.PhaseFailed, Reason: op.Reason, Message: op.LastError}}
	if hasCleanupFailed(in) {
		d.Status.Message = "the remains of the last run are not removed yet: " + op.LastError
	}
	if next := nextTry(in); in.Now.Before(next) {
		d.WakeAt, d.NextTry = next, next
	}
	if in.Observed.Answer == Present && slices.Contains([]State{StateRunning, StatePaused, StateUnknown}, in.Observed.Server.State) {
		d.Status.Phase = planWait(in, "", "", "").Status.Phase
	}
	d.Status.Stalled = op.Failure == api.FailureRefused
	return d
}

// Backoff returns the wait after the n-th failure in a row: 1 s, doubling up to 5 min. If slow
// is set, the wait is at least 30 s: exhausted resources seldom return at once.
func Backoff(n int32, slow bool) time.Duration {
	d := firstBackoff
	for ; n > 1 && d < maxBackoff; n-- {
		d *= 2
	}
	if slow {
		d = max(d, slowBackoff)
	}
	return min(d, maxBackoff)
}
