// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"fmt"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

const (
	// DeletionCheckPeriod is the time between two queries to all drivers while one of the
	// drivers blocks a deletion.
	DeletionCheckPeriod = 30 * time.Second
	// removalPoll is the delay before the first check of a removal whose end no event has reported.
	removalPoll = time.Second
	// removalTimeout is how long a removal may take before the deletion counts as blocked.
	removalTimeout = 30 * time.Second
)

// decideDeletion stops the server, removes the server, and then removes the finalizer. Neither a
// failing stop nor an earlier failed creation blocks the deletion.
func decideDeletion(in Input) Decision {
	switch {
	case in.Driver == "" && in.VM.Binding.Driver == "":
		return decideDeletionElsewhere(in)
	case LacksUID(in.VM.Binding):
		return planBlocked(in, engineMismatch(in))
	case engineMismatch(in) != "":
		return planBlocked(in, engineMismatch(in)+": let that engine answer again, or remove the finalizer "+api.FinalizerServer+" by hand if it is gone forever")
	case in.Observed.Answer == Unknown:
		return decideDeletionUnknown(in)
	case in.Observed.Duplicates != "":
		return planBlocked(in, duplicateText(in))
	case in.Observed.Answer == Gone:
		return decideDeletionGone(in)
	}
	d := planTermination(api.OperationDelete, api.ReasonTerminating, in.Observed.Server.Progress)
	d.Action.Step = StepDelete
	if in.VM.Spec.DeletionPolicy == api.DeletionRetain {
		d.Action.Operation, d.Status.Reason, d.Action.Retain = api.OperationRelease, api.ReasonReleasing, true
	} else if stop, ok := decideDeletionStop(in); ok {
		return stop
	}
	return waitForRemoval(in, d)
}

func decideDeletionUnknown(in Input) Decision {
	if d, short := decideShortOutage(in); short {
		return d
	}
	d := planBlocked(in, "the server may still be there, and the deletion continues when the engine answers: "+in.Observed.Cause)
	d.Status.Unobserved = true
	return d
}

// decideDeletionGone ends the deletion once the server is certain to be gone. Before that it
// calls Delete even if no server is found: the call records the new epoch on the engine, so a
// former leader that was suspended during a creation can no longer finish the creation.
func decideDeletionGone(in Input) Decision {
	d := planTermination(api.OperationDelete, api.ReasonTerminating, "")
	if in.Now.Before(in.Observed.SettlesAt) {
		d.WakeAt = in.Observed.SettlesAt
		d.Status.Message = fmt.Sprintf("a creation timed out and may still succeed: checked again at %s", in.Observed.SettlesAt.UTC().Format(time.RFC3339))
		d.Status.Blocked = true
		return d
	}
	if in.DeletionBlocker != "" {
		return planBlockedByDriver(in)
	}
	d.Action.Step, d.Action.AllDrivers = StepFinish, in.VM.Binding.EngineID == ""
	if in.Done != api.OperationDelete && in.Done != api.OperationRelease {
		d.Action.Step, d.Action.Retain = StepDelete, in.VM.Spec.DeletionPolicy == api.DeletionRetain
	}
	return waitForRemoval(in, d)
}

// decideDeletionElsewhere ends the deletion of an object without a binding whose driver does
// not run here, such as a copy from another cluster.
func decideDeletionElsewhere(in Input) Decision {
	if in.DeletionBlocker != "" {
		return planBlockedByDriver(in)
	}
	d := planTermination(api.OperationDelete, api.ReasonTerminating, "")
	d.Action.Step, d.Action.AllDrivers = StepFinish, true
	return d
}

// planBlockedByDriver waits while a driver has the server of an object without a binding, or
// cannot tell whether it has the server.
func planBlockedByDriver(in Input) Decision {
	d := planBlocked(in, in.DeletionBlocker)
	d.Action.Operation = "" // nothing is under way
	d.WakeAt = in.Now.Add(DeletionCheckPeriod)
	return d
}

// decideDeletionStop lets a running guest shut down, and retries a failed stop, until the grace
// period is over. The grace period counts from the deletion.
func decideDeletionStop(in Input) (Decision, bool) {
	d := planTermination(api.OperationStop, api.ReasonStopping, in.Observed.Server.Progress)
	d.Action.Power, d.Action.StopBy = PowerOff, in.Since.Deletion.Add(gracePeriod(in))
	if !in.Now.Before(d.Action.StopBy) {
		return Decision{}, false
	}
	switch in.Observed.Server.State {
	case StateRunning, StateStarting, StatePaused:
		return decideStopRetry(in, d), true
	case StateStopping:
		if in.Observed.Server.NeedsEnsure {
			return decideStopRetry(in, d), true
		}
		d.WakeAt = d.Action.StopBy
		return d, true
	case StatePending, StateStopped, StateRestarting, StateRemoving, StateUnknown:
	}
	return Decision{}, false
}

// decideStopRetry stops the guest, or waits for the next try if a stop has failed since the deletion.
func decideStopRetry(in Input, d Decision) Decision {
	op := in.VM.Status.Operation
	d.Action.Step = StepEnsure
	if op.Type != api.OperationStop || op.Generation != in.VM.Generation || op.NextRetryTime.IsZero() {
		return d
	}
	if next := nextTry(in); in.Now.Before(next) {
		d.Action.Step, d.Status.Message, d.Status.Blocked = StepNone, op.LastError, true
		d.Status.Reason, d.NextTry, d.WakeAt = op.Reason, next, Earliest(d.Action.StopBy, next)
	}
	return d
}

// waitForRemoval turns d into waiting while a removal is under way, or while a failed removal
// waits for its retry.
func waitForRemoval(in Input, d Decision) Decision {
	op := in.VM.Status.Operation
	switch {
	case op.Type == d.Action.Operation && isStillWaiting(in) && in.Now.Before(nextTry(in)):
		d.Action.Step, d.WakeAt, d.NextTry, d.Status.Blocked = StepNone, nextTry(in), nextTry(in), true
		d.Status.Reason = op.Reason
		d.Status.Message = fmt.Sprintf("%s; next try at %s", op.LastError, d.WakeAt.UTC().Format(time.RFC3339))
	case d.Action.Step == StepDelete && in.Done == d.Action.Operation, in.Observed.Server.State == StateRemoving:
		return planRemoval(in, d)
	}
	return d
}

// planRemoval waits for a removal that is under way. After removalTimeout it reports what blocks the removal, as
// the driver says. It checks the removal less and less often, because events report its end.
func planRemoval(in Input, d Decision) Decision {
	began := beganAt(in, d.Action.Operation)
	d.Action.Step, d.WakeAt = StepNone, nextCheck(began, in.Now)
	if in.Now.Before(began.Add(removalTimeout)) {
		return d
	}
	d.NextTry, d.Status.Blocked, d.Status.Reason = d.WakeAt, true, api.ReasonDeletionHeld
	d.Status.Message = fmt.Sprintf("%s; checked again at %s",
		cmp.Or(in.Observed.Server.Progress, "the engine has yet to remove the server"), d.WakeAt.UTC().Format(time.RFC3339))
	return d
}

// nextCheck returns the next instant at which a removal is checked: 1 s after the removal began, and then after
// waits that double. The instants depend only on the begin, so a pass between two checks does not change the status.
func nextCheck(began, now time.Time) time.Time {
	at, wait := began.Add(removalPoll), removalPoll
	for ; !now.Before(at); wait = min(2*wait, maxBackoff) {
		at = at.Add(wait)
	}
	return at
}

func planTermination(operation api.OperationType, reason, message string) Decision {
	return Decision{Action: Action{Operation: operation}, Status: StatusIntent{Phase: api.PhaseTerminating, Reason: reason, Message: message}}
}

func planBlocked(in Input, message string) Decision {
	d := planTermination(api.OperationDelete, api.ReasonTerminating, message)
	d.Status.Blocked = true
	switch {
	case engineMismatch(in) != "":
		d.Status.Reason, d.Status.Unobserved = api.ReasonEngineMismatch, true
	case in.Observed.Answer == Unknown:
		d.Status.Reason = unknownReason(in)
	case in.DeletionBlocker != "":
		d.Status.Reason = api.ReasonEngineMismatch
	default:
		d.Status.Reason = api.ReasonDuplicate
	}
	return d
}
