// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy decides what to do about a VirtualMachine. It does no I/O and
// reads no clock: Decide is a function of its Input, which is plain data (input.go).
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
// Functions named decide choose between decisions, and functions named plan make one
// decision. binding.go finds the driver and the engine that a VirtualMachine belongs to.
// Package decisions records inputs and decisions.
package policy

import (
	"fmt"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// OutageDelay is how long an outage of the engine lasts before a status reports it.
const OutageDelay = 5 * time.Second

// Decision has the action to take now and the status to report meanwhile.
type Decision struct {
	Action Action `json:"action"`
	// Status is reported while the action is taken or, if there is none, until
	// something changes.
	Status StatusIntent `json:"status"`
	// WakeAt is when to reconcile again even if nothing happens.
	WakeAt time.Time `json:"wakeAt,omitzero"`
	// NextTry is when a failed operation is tried again.
	NextTry time.Time `json:"nextTry,omitzero"`
}

// Step is a kind of action.
type Step string

// Values of Step.
const (
	// StepNone does nothing but wait.
	StepNone Step = ""
	// StepEnsure calls the driver's Ensure.
	StepEnsure Step = "ensure"
	// StepDelete calls the driver's Delete.
	StepDelete Step = "delete"
	// StepFinish removes the finalizer.
	StepFinish Step = "finish"
)

// Action is the next action on a server, if any.
type Action struct {
	Step Step `json:"step,omitzero"`
	// Operation is the operation that is under way, about to begin, or failing. It is empty
	// if the server is as specified.
	Operation api.OperationType `json:"operation,omitzero"`
	Power     Power             `json:"power,omitzero"`
	StopBy    time.Time         `json:"stopBy,omitzero"`
	// EndRun is the run that a restart ends.
	EndRun string `json:"endRun,omitzero"`
	// RecordFirst writes the operation to the status before the step is taken, because the
	// step cannot be repeated.
	RecordFirst bool `json:"recordFirst,omitzero"`
	// BeginsStop is set for a restart whose stop has yet to begin.
	BeginsStop bool `json:"beginsStop,omitzero"`
	// ShortRuns is set for a start after a run that ended by itself. It counts the starts in
	// a row, this one included, that have not led to a stable run yet. CrashedRun is the run
	// that ended, and Evicted is set if the host evicted this run.
	ShortRuns  int32  `json:"shortRuns,omitzero"`
	CrashedRun string `json:"crashedRun,omitzero"`
	Evicted    bool   `json:"evicted,omitzero"`
	// EndedByOthers is set for a stop that Drover did not begin, of a run that the spec wants.
	EndedByOthers bool `json:"endedByOthers,omitzero"`
	// FollowsUp is set for an update that only the driver asks for, so that users see no change.
	FollowsUp bool `json:"followsUp,omitzero"`
	// Retain releases the server instead of removing it.
	Retain bool `json:"retain,omitzero"`
	// AllDrivers queries every driver before the finalizer is removed.
	AllDrivers bool `json:"allDrivers,omitzero"`
}

// IsSameStep reports whether other takes the same step, for the same operation and run.
func (a Action) IsSameStep(other Action) bool {
	return a.Step == other.Step && a.Operation == other.Operation && a.EndRun == other.EndRun
}

// StatusIntent is the status to report.
type StatusIntent struct {
	// Unchanged leaves the status as it is.
	Unchanged bool      `json:"unchanged,omitzero"`
	Phase     api.Phase `json:"phase,omitzero"`
	Reason    string    `json:"reason,omitzero"`
	Message   string    `json:"message,omitzero"`
	Ready     bool      `json:"ready,omitzero"`
	Stalled   bool      `json:"stalled,omitzero"`
	// Unobserved is set while the engine cannot be queried.
	Unobserved bool `json:"unobserved,omitzero"`
	// Blocked is set while a deletion waits for something to be repaired.
	Blocked bool `json:"blocked,omitzero"`
	// Pending are the spec fields that wait for a restart. Refused is the spec field that
	// the driver cannot apply to this server.
	Pending List             `json:"pending,omitzero"`
	Refused api.RefusedField `json:"refused,omitzero"`
	// RestartHandled marks spec.restartedAt as done.
	RestartHandled bool `json:"restartHandled,omitzero"`
	// StoppedBySpec is set if the server is off because the spec says so.
	StoppedBySpec bool `json:"stoppedBySpec,omitzero"`
}

// Decide returns what to do about a VirtualMachine, given its observed server.
func Decide(in Input) Decision {
	var d Decision
	switch {
	case in.VM.IsDeleted:
		d = decideDeletion(in)
	case engineMismatch(in) != "":
		d = decideMismatch(in)
	case in.Observed.Answer == Unknown:
		d = decideUnknown(in)
	case !in.VM.IsBound:
		d = Decision{Status: StatusIntent{Unchanged: true}, WakeAt: in.Now.Add(bindRetry)}
	case in.Observed.Duplicates != "":
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
	if refused := d.Status.Refused; refused.Field != "" && d.Status.Ready {
		d.Status.Ready, d.Status.Stalled, d.Status.Reason, d.Status.Message = false, true, refused.Reason, refused.Message
	}
	return d
}

// engineMismatch returns why the engine that answers is not known to be the VM's engine, or "" if it is.
func engineMismatch(in Input) string {
	bound := in.VM.Binding
	switch {
	case LacksUID(bound):
		return fmt.Sprintf("the binding %s lacks a UID, so it may be another VirtualMachine's: set the annotation %s to <driver>/<engine id>/%s, with the engine that has the server",
			engineText(bound), api.AnnotationBound, in.VM.UID)
	case in.Driver == "" && bound.Driver == "":
		return fmt.Sprintf("spec.driver %q is not a driver that runs here (%s)", in.VM.Spec.Driver, strings.Join(in.Drivers.Names(), ", "))
	case in.Driver == "":
		return fmt.Sprintf("the VirtualMachine is bound to %s, and driver %s does not run here (%s)", engineText(bound), bound.Driver, strings.Join(in.Drivers.Names(), ", "))
	case IsOtherEngine(bound, in.Observed.EngineID):
		return fmt.Sprintf("the VirtualMachine is bound to %s, and the %s engine that answers is %s", engineText(bound), in.Driver, in.Observed.EngineID)
	}
	return ""
}

// IsOtherEngine reports whether the engine that answers is not known to be the binding's engine.
func IsOtherEngine(bound api.Binding, engineID string) bool {
	return LacksUID(bound) || bound.EngineID != "" && engineID != "" && bound.EngineID != engineID
}

// decideMismatch waits, since the answer of another engine proves nothing about the server. It
// refuses only a VM that was never bound.
func decideMismatch(in Input) Decision {
	if in.VM.Binding.Driver == "" {
		return Decision{Status: StatusIntent{Phase: api.PhaseFailed, Reason: api.ReasonUnknownDriver, Message: engineMismatch(in), Stalled: true}}
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseUnknown, Reason: api.ReasonEngineMismatch, Message: engineMismatch(in), Unobserved: true}}
}

// decideUnknown waits for the engine, and reports an outage that lasts longer than OutageDelay.
func decideUnknown(in Input) Decision {
	if d, short := decideShortOutage(in); short {
		return d
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseUnknown, Reason: unknownReason(in), Message: in.Observed.Cause, Unobserved: true}}
}

func unknownReason(in Input) string {
	if in.Observed.Fenced {
		return api.ReasonFenced
	}
	return api.ReasonEngineUnavailable
}

// decideShortOutage waits without a report: for the engine's first list of servers, and for the end
// of an outage shorter than OutageDelay.
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
	ids := in.Observed.Duplicates.Names()
	return fmt.Sprintf("%d servers carry the UID %s (%s): remove all but one", len(ids), in.VM.UID, strings.Join(ids, ", "))
}

// Earliest returns the earlier of two times, of which the second may be zero.
func Earliest(a, b time.Time) time.Time {
	if b.IsZero() || a.Before(b) {
		return a
	}
	return b
}
