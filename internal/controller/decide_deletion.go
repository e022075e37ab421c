// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// decideDeletion stops the server, removes it, and lets the object go when it
// is gone. A failing stop, or a create that failed before, is no obstacle.
func decideDeletion(in input) plan {
	switch {
	case misplaced(in) != "":
		return blocked(in, misplaced(in)+": let that engine answer again, or remove the finalizer "+api.FinalizerServer+" by hand if it is gone for good")
	case in.seen.Answer == inventory.Unknown:
		return decideDeletionUnknown(in)
	case len(in.seen.Duplicates) > 0:
		return blocked(in, duplicateText(in))
	case in.seen.Answer == inventory.Gone:
		return decideDeletionGone(in)
	}
	p := terminating(api.OperationDelete, api.ReasonTerminating, in.seen.Server.Doing)
	p.step = stepDelete
	if in.vm.Spec.DeletionPolicy == api.DeletionRetain {
		p.operation, p.reason, p.retain = api.OperationRelease, api.ReasonReleasing, true
	} else if stop, ok := decideDeletionStop(in); ok {
		return stop
	}
	return afterRemoval(in, p)
}

func decideDeletionUnknown(in input) plan {
	if p, short := shortOutage(in); short {
		return p
	}
	p := blocked(in, "the server may still be there, and the deletion goes on when the engine answers: "+in.seen.Cause.Error())
	p.unobserved = true
	return p
}

// decideDeletionGone ends the deletion, once "gone" can be believed. Before that
// the engine is told to delete even what is not there: a leader that was halted
// in a creation, and goes on when the object is no more, is then fenced off.
func decideDeletionGone(in input) plan {
	p := terminating(api.OperationDelete, api.ReasonTerminating, "")
	if in.now.Before(in.seen.SettlesAt) {
		p.wake = in.seen.SettlesAt
		p.message = fmt.Sprintf("a creation timed out and may still come to its end: looks again at %s", in.seen.SettlesAt.UTC().Format(time.RFC3339))
		p.blocked = true
		return p
	}
	p.step = stepFinish
	if in.did != api.OperationDelete && in.did != api.OperationRelease {
		p.step, p.retain = stepDelete, in.vm.Spec.DeletionPolicy == api.DeletionRetain
	}
	return afterRemoval(in, p)
}

// decideDeletionStop lets a running guest shut down until its grace period,
// counted from the deletion, is over. One try is enough.
func decideDeletionStop(in input) (plan, bool) {
	p := terminating(api.OperationStop, api.ReasonStopping, in.seen.Server.Doing)
	p.power, p.stopBy = driver.PowerOff, in.vm.DeletionTimestamp.Add(grace(in.vm))
	op := in.vm.Status.Operation
	failed := op != nil && op.Type == api.OperationStop && op.Attempts > 0
	if failed || !in.now.Before(p.stopBy) {
		return plan{}, false
	}
	switch in.seen.Server.State {
	case driver.StateRunning, driver.StateStarting, driver.StatePaused:
		p.step = stepEnsure
		return p, true
	case driver.StateStopping:
		p.wake = p.stopBy
		return p, true
	case driver.StatePending, driver.StateStopped, driver.StateRestarting, driver.StateRemoving:
	}
	return plan{}, false
}

// afterRemoval waits while a removal is under way or a failed one has to be
// tried again later.
func afterRemoval(in input, p plan) plan {
	op := in.vm.Status.Operation
	switch {
	case op != nil && op.Type == p.operation && stillHolds(in) && in.now.Before(nextRetry(op)):
		p.step, p.wake, p.blocked = stepNone, nextRetry(op), true
		p.reason = in.vm.Status.Reason
		p.message = fmt.Sprintf("%s; next try at %s", op.LastError, op.NextRetryTime.UTC().Format(time.RFC3339))
	case p.step == stepDelete && in.did == p.operation, in.seen.Server.State == driver.StateRemoving:
		p.step, p.wake = stepNone, in.now.Add(removalPoll)
	}
	return p
}

func terminating(operation api.OperationType, reason, message string) plan {
	return plan{operation: operation, phase: api.PhaseTerminating, reason: reason, message: message}
}

func blocked(in input, message string) plan {
	p := terminating(api.OperationDelete, api.ReasonTerminating, message)
	p.blocked = true
	switch {
	case misplaced(in) != "":
		p.reason, p.unobserved = api.ReasonEngineMismatch, true
	case in.seen.Answer == inventory.Unknown:
		p.reason = api.ReasonEngineUnavailable
	default:
		p.reason = api.ReasonDuplicate
	}
	return p
}
