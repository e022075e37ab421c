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

// elsewherePeriod is the time between two queries to all drivers, while one of them
// blocks a deletion.
const elsewherePeriod = 30 * time.Second

// decideDeletion stops the server, removes it, and removes the finalizer when it is
// gone. A failing stop or an earlier failed creation does not block it.
func decideDeletion(in input) plan {
	switch {
	case engineMismatch(in) != "":
		return planBlocked(in, engineMismatch(in)+": let that engine answer again, or remove the finalizer "+api.FinalizerServer+" by hand if it is gone for good")
	case in.seen.Answer == inventory.Unknown:
		return decideDeletionUnknown(in)
	case len(in.seen.Duplicates) > 0:
		return planBlocked(in, duplicateText(in))
	case in.seen.Answer == inventory.Gone:
		return decideDeletionGone(in)
	}
	p := planTermination(api.OperationDelete, api.ReasonTerminating, in.seen.Server.Progress)
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
	p := planBlocked(in, "the server may still be there, and the deletion goes on when the engine answers: "+in.seen.Cause.Error())
	p.unobserved = true
	return p
}

// decideDeletionGone ends the deletion once "gone" is certain. Before that it makes
// the engine delete even a server that does not exist. That fences off a leader
// that was suspended during a creation and resumes after the object is gone.
func decideDeletionGone(in input) plan {
	p := planTermination(api.OperationDelete, api.ReasonTerminating, "")
	if in.now.Before(in.seen.SettlesAt) {
		p.wake = in.seen.SettlesAt
		p.message = fmt.Sprintf("a creation timed out and may still come to its end: looks again at %s", in.seen.SettlesAt.UTC().Format(time.RFC3339))
		p.blocked = true
		return p
	}
	if in.elsewhere != "" {
		p := planBlocked(in, in.elsewhere)
		p.operation = "" // nothing is under way
		p.wake = in.now.Add(elsewherePeriod)
		return p
	}
	p.step, p.everywhere = stepFinish, isUnproven(in.vm)
	if in.did != api.OperationDelete && in.did != api.OperationRelease {
		p.step, p.retain = stepDelete, in.vm.Spec.DeletionPolicy == api.DeletionRetain
	}
	return afterRemoval(in, p)
}

// isUnproven reports whether the engine on which a VirtualMachine's server was
// created is unknown, although a server may exist.
func isUnproven(vm *api.VirtualMachine) bool {
	return BindingOf(vm).EngineID == "" && vm.Status.ObservedGeneration > 0
}

// decideDeletionStop lets a running guest shut down until its grace period, counted
// from the deletion, is over. A failed stop is retried until then.
func decideDeletionStop(in input) (plan, bool) {
	p := planTermination(api.OperationStop, api.ReasonStopping, in.seen.Server.Progress)
	p.power, p.stopBy = driver.PowerOff, in.since.deletion.Add(gracePeriodOf(in.vm))
	if !in.now.Before(p.stopBy) {
		return plan{}, false
	}
	switch in.seen.Server.State {
	case driver.StateRunning, driver.StateStarting, driver.StatePaused:
		return deletionStopTry(in, p), true
	case driver.StateStopping:
		p.wake = p.stopBy
		return p, true
	case driver.StatePending, driver.StateStopped, driver.StateRestarting, driver.StateRemoving:
	}
	return plan{}, false
}

// deletionStopTry stops the guest. If a stop has failed since the deletion, it
// waits for the next try.
func deletionStopTry(in input, p plan) plan {
	op := in.vm.Status.Operation
	p.step = stepEnsure
	if op == nil || op.Type != api.OperationStop || op.Generation != in.vm.Generation || op.NextRetryTime == nil {
		return p
	}
	if next := nextTry(in); in.now.Before(next) {
		p.step, p.message, p.blocked = stepNone, op.LastError, true
		p.reason, p.nextTry, p.wake = op.Reason, next, earliest(p.stopBy, next)
	}
	return p
}

// afterRemoval waits while a removal is under way or a failed one waits for its
// retry.
func afterRemoval(in input, p plan) plan {
	op := in.vm.Status.Operation
	switch {
	case op != nil && op.Type == p.operation && isStillWaiting(in) && in.now.Before(nextTry(in)):
		p.step, p.wake, p.nextTry, p.blocked = stepNone, nextTry(in), nextTry(in), true
		p.reason = op.Reason
		p.message = fmt.Sprintf("%s; next try at %s", op.LastError, p.wake.UTC().Format(time.RFC3339))
	case p.step == stepDelete && in.did == p.operation, in.seen.Server.State == driver.StateRemoving:
		p.step, p.wake = stepNone, in.now.Add(removalPoll)
	}
	return p
}

func planTermination(operation api.OperationType, reason, message string) plan {
	return plan{operation: operation, phase: api.PhaseTerminating, reason: reason, message: message}
}

func planBlocked(in input, message string) plan {
	p := planTermination(api.OperationDelete, api.ReasonTerminating, message)
	p.blocked = true
	switch {
	case engineMismatch(in) != "":
		p.reason, p.unobserved = api.ReasonEngineMismatch, true
	case in.seen.Answer == inventory.Unknown:
		p.reason = unknownReason(in)
	case in.elsewhere != "":
		p.reason = api.ReasonEngineMismatch
	default:
		p.reason = api.ReasonDuplicate
	}
	return p
}
