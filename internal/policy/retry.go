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
	// bindRetry is the delay before retrying a VM that could not be bound because
	// the engine became known a moment too late.
	bindRetry = time.Second
)

// maxRecordings is how many steps in a row may have objects recorded and do nothing else. A restart
// has two: it records the end of the last run, and then what the next one needs.
const maxRecordings = 3

// IsStuck reports whether so many steps in a row had objects recorded, and neither succeeded nor
// failed, that the last of them counts as a failure and backs off.
func IsStuck(recordings int) bool { return recordings > maxRecordings }

// isOnHold reports whether a failed operation waits for its next try. A refused
// operation waits for a new spec, for another leader, which may have other
// settings, such as the allowed registries, or for a driver that asks for an Ensure.
func isOnHold(in Input) bool {
	op := in.VM.Status.Operation
	if op.Type == "" || op.Type == api.OperationDelete || op.Type == api.OperationRelease || op.Failure == api.FailureExited || !isStillWaiting(in) {
		return false
	}
	return op.Failure == api.FailureRefused && op.Epoch == in.Epoch && !isEnsureDue(in) || in.Now.Before(nextTry(in))
}

// isEnsureDue reports whether the driver has work that a refused spec must not delay: a cleanup, or a change of the
// operator's settings for a server that runs.
func isEnsureDue(in Input) bool {
	asks := in.Observed.Answer == Present && in.Observed.Server.NeedsEnsure
	return IsCleanupDue(in.Observed) || asks && in.VM.Status.Operation.Failure == api.FailureRefused && in.VM.Status.Operation.Epoch == in.Epoch
}

// IsCleanupDue reports whether the driver has to remove what the last run of a server that is off has left,
// such as the finalizer of a pod that is being deleted. That does not depend on the spec.
func IsCleanupDue(observed Observed) bool {
	return observed.Answer == Present && observed.Server.State == StateStopped && observed.Server.NeedsEnsure
}

// isStillWaiting reports whether nothing has happened that ends the wait of a
// failed operation: a new spec, a server that differs from the one
// that the last try left, or an engine that came back.
func isStillWaiting(in Input) bool {
	op := in.VM.Status.Operation
	if in.VM.Generation != op.Generation || !IsAsReported(in.VM.Status.Server, in.Observed) {
		return false
	}
	return op.NextRetryTime.IsZero() || !in.Observed.BackSince.After(in.Since.Failure)
}

// nextTry returns when a failed operation is retried, by this process's clock. It
// is the zero time if no retry is planned.
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

// cleanupBackoff returns the wait before the next cleanup, which a drain may wait for. The first is not delayed
// by failures from before it was due. After a failed cleanup, the wait is the time since it became due, so each
// wait is about twice the one before.
func cleanupBackoff(in Input) time.Duration {
	if !hasCleanupFailed(in) {
		return 0
	}
	return max(firstBackoff, in.Since.Failure.Sub(in.Since.Cleanup))
}

// hasCleanupFailed reports whether the last failure is of a call that had to remove what the last run has left.
func hasCleanupFailed(in Input) bool {
	return IsCleanupDue(in.Observed) && in.VM.Status.Operation.Failure != "" && !in.Since.Failure.Before(in.Since.Cleanup)
}

// IsAsReported reports whether the server is as the status says. No server and a
// server whose image is still being fetched count as the same.
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
		d.Status.Message = "what the last run has left is not removed yet: " + op.LastError
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

// Backoff returns the wait after the n-th failure in a row: 1 s, doubling to 5 min.
// If slow, as for exhausted resources, which seldom return at once, it is at least
// 30 s.
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
