// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy decides what to do about a VirtualMachine. It does no I/O and
// reads no clock: Decide is a function of its Input.
//
// Start with Decide in decide.go, which chooses between:
//
//	deletion.go  the object is being deleted
//	retry.go     an operation has failed and waits for its next try
//	power.go     the server's state differs from spec.action, or is as specified
//	restart.go   spec.restartedAt requests a restart
//	crash.go     the server has ended by itself: spec.restartPolicy
//	update.go    the driver has yet to apply a change of the spec
//
// Functions named decide choose between decisions, and those named plan make one.
// binding.go has the driver and the engine that a VirtualMachine belongs to.
package policy

import (
	"fmt"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// OutageDelay is how long an outage lasts before a status reports it.
const OutageDelay = 5 * time.Second

// Input is everything that Decide considers.
type Input struct {
	VM *api.VirtualMachine
	// Observed is the inventory's answer about the VM's server.
	Observed inventory.Observation
	Now      time.Time
	// Driver is the driver of this controller; empty if the VM's driver does not
	// run here.
	Driver string
	// Drivers are the drivers that run here, for messages.
	Drivers []string
	// Epoch is the epoch of the leader that decides.
	Epoch int64
	// Done is the operation that has just succeeded, if any.
	Done api.OperationType
	// PassedGeneration is the generation of the spec that was last passed to the driver.
	PassedGeneration int64
	// Probe is the readiness probe's result for a running server.
	Probe ProbeResult
	// Since has the instants that waits count from.
	Since Instants
	// DeletionBlocker says why the server of a VM without a binding may be on another
	// driver's engine.
	DeletionBlocker string
}

// Decision is what to do now, and what to report meanwhile.
type Decision struct {
	Action Action
	// Status is reported while the action is taken or, if there is none, until
	// something changes.
	Status StatusIntent
	// WakeAt is when to reconcile again even if nothing happens.
	WakeAt time.Time
	// NextTry is when the operation that failed is tried again.
	NextTry time.Time
}

// Step is a kind of action.
type Step int

// The steps.
const (
	// StepNone waits.
	StepNone Step = iota
	// StepEnsure calls the driver's Ensure.
	StepEnsure
	// StepDelete calls the driver's Delete.
	StepDelete
	// StepFinish removes the finalizer.
	StepFinish
)

// Action is what to do now.
type Action struct {
	Step Step
	// Operation is under way, about to be taken, or failing. It is empty if the
	// server is as specified.
	Operation api.OperationType
	Power     driver.Power
	StopBy    time.Time
	// EndRun is the run that a restart ends.
	EndRun string
	// RecordFirst writes the operation to the status before it is taken, because it
	// cannot be repeated.
	RecordFirst bool
	// BeginsStop is set for a restart whose stop has yet to begin.
	BeginsStop bool
	// ShortRuns is set for a start that follows a run which ended by itself. It counts
	// the starts in a row that have yet to lead to a stable run, this one included. CrashedRun
	// is that run.
	ShortRuns  int32
	CrashedRun string
	// FollowsUp is set for an update that only the driver asks for: to a user, nothing changes.
	FollowsUp bool
	// Retain releases the server instead of removing it.
	Retain bool
	// AllDrivers queries every driver before the finalizer is removed.
	AllDrivers bool
}

// IsSameStep reports whether another action is the same step for the same purpose.
func (a Action) IsSameStep(other Action) bool {
	return a.Step == other.Step && a.Operation == other.Operation && a.EndRun == other.EndRun
}

// StatusIntent is what to report.
type StatusIntent struct {
	// Unchanged leaves the status as it is.
	Unchanged       bool
	Phase           api.Phase
	Reason, Message string
	Ready, Stalled  bool
	// Unobserved is set while the engine cannot be queried.
	Unobserved bool
	// Blocked is set while a deletion waits for something to be repaired.
	Blocked bool
	// Pending are the spec fields that wait for a restart. Refused is the field
	// that the server cannot have.
	Pending []string
	Refused *api.RefusedField
	// RestartHandled marks spec.restartedAt as done.
	RestartHandled bool
	// StoppedBySpec is set if the server is off because the spec says so.
	StoppedBySpec bool
}

// Decide returns what to do about a VirtualMachine, given its observed server.
func Decide(in Input) Decision {
	var d Decision
	switch {
	case in.VM.DeletionTimestamp != nil:
		d = decideDeletion(in)
	case engineMismatch(in) != "":
		d = decideMismatch(in)
	case in.Observed.Answer == inventory.Unknown:
		d = decideUnknown(in)
	case !IsBound(in.VM):
		d = Decision{Status: StatusIntent{Unchanged: true}, WakeAt: in.Now.Add(bindRetry)}
	case len(in.Observed.Duplicates) > 0:
		d = Decision{Status: StatusIntent{Phase: api.PhaseFailed, Reason: api.ReasonDuplicate, Message: duplicateText(in)}}
	case isOnHold(in):
		d = decideHold(in)
	default:
		d = decidePower(in)
	}
	if isWaiting(in, d) {
		d.Action.Step, d.Status.Message = StepNone, in.Observed.Server.Progress
		if !in.Observed.Server.IsLeaving {
			d.Status.Reason = api.ReasonFetching
		}
	}
	d.Action.FollowsUp = d.Action.Operation == api.OperationUpdate && !hasChange(in)
	d.Status.RestartHandled = d.Status.RestartHandled || !isRestartWanted(in) || hasNothingToRestart(in, d.Status)
	d.Status.Pending, d.Status.Refused = pendingFields(in), refusedField(in)
	if d.Status.Refused != nil && d.Status.Ready {
		d.Status.Ready, d.Status.Stalled, d.Status.Reason, d.Status.Message = false, true, d.Status.Refused.Reason, d.Status.Refused.Message
	}
	return d
}

// engineMismatch returns why the engine of this driver is not the VM's, or "".
func engineMismatch(in Input) string {
	bound := BindingOf(in.VM)
	switch {
	case in.Driver == "" && bound.Driver == "":
		return fmt.Sprintf("spec.driver %q is not a driver that runs here (%s)", in.VM.Spec.Driver, strings.Join(in.Drivers, ", "))
	case in.Driver == "":
		return fmt.Sprintf("the VirtualMachine is bound to %s, and driver %s does not run here (%s)", engineText(bound), bound.Driver, strings.Join(in.Drivers, ", "))
	case IsOtherEngine(in.VM, in.Observed.EngineID):
		return fmt.Sprintf("the VirtualMachine is bound to %s, and the %s engine that answers is %s", engineText(bound), in.Driver, in.Observed.EngineID)
	}
	return ""
}

// IsOtherEngine reports whether the engine that answers is not the one that a VM is bound to.
func IsOtherEngine(vm *api.VirtualMachine, engineID string) bool {
	bound := BindingOf(vm).EngineID
	return bound != "" && engineID != "" && bound != engineID
}

// decideMismatch waits: another engine's answer proves nothing about the server.
// Only a VM that was never bound is refused.
func decideMismatch(in Input) Decision {
	if BindingOf(in.VM).Driver == "" {
		return Decision{Status: StatusIntent{Phase: api.PhaseFailed, Reason: api.ReasonUnknownDriver, Message: engineMismatch(in), Stalled: true}}
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseUnknown, Reason: api.ReasonEngineMismatch, Message: engineMismatch(in), Unobserved: true}}
}

// decideUnknown waits for the engine, and reports an outage only after it has
// lasted.
func decideUnknown(in Input) Decision {
	if d, short := decideShortOutage(in); short {
		return d
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseUnknown, Reason: unknownReason(in), Message: in.Observed.Cause.Error(), Unobserved: true}}
}

func unknownReason(in Input) string {
	if in.Observed.Fenced {
		return api.ReasonFenced
	}
	return api.ReasonEngineUnavailable
}

// decideShortOutage waits without reporting: for the first list, and for an outage
// that may end in a moment.
func decideShortOutage(in Input) (Decision, bool) {
	switch {
	case in.Observed.Fenced:
		return Decision{}, false
	case in.Observed.DownSince.IsZero():
		return Decision{Status: StatusIntent{Unchanged: true}}, true
	}
	shown := in.Observed.DownSince.Add(OutageDelay)
	return Decision{Status: StatusIntent{Unchanged: true}, WakeAt: shown}, in.Now.Before(shown)
}

func duplicateText(in Input) string {
	return fmt.Sprintf("%d servers carry the UID %s (%s): remove all but one", len(in.Observed.Duplicates), in.VM.UID, strings.Join(in.Observed.Duplicates, ", "))
}

// ProbeResult is the result of a readiness probe.
type ProbeResult struct {
	// Wanted is set if the spec has a probe.
	Wanted bool
	// Completed is set once the result is known: the server was probed, or cannot be
	// because it does not run or has no address. OK is the last result, and Message
	// says why it failed.
	Completed, OK bool
	Message       string
}

// Instants has the instants that waits count from, by this process's clock. The
// zero time means that the fact does not hold.
//
// Times in objects and on servers were written by other clocks: the API server's,
// the engine's, another replica's. They are displayed and compared for equality,
// but no wait counts from them, since each may be an hour off. After a failover a
// wait counts from when the new leader first observed its cause, so it at most
// doubles.
type Instants struct {
	// Deletion is when the deletion of the object was first observed.
	Deletion time.Time
	// Operation is when status.operation was first observed, and Failure when its
	// last failure was.
	Operation, Failure time.Time
	// Run is when the server's run was first observed running, and Exit when it was
	// first observed over.
	Run, Exit time.Time
}

// Earliest returns the earlier of two times, of which the second may be zero.
func Earliest(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}
