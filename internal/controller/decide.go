// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

const (
	// OutageDelay is how long an outage lasts before a status reports it.
	OutageDelay = 5 * time.Second
	// stableRun is how long a run must last for its end to count as the first one
	// again.
	stableRun = 10 * time.Second
	// bindRetry is the delay before retrying a VM that could not be bound because
	// the engine became known a moment too late.
	bindRetry = time.Second
	// removalPoll is the delay before a removal under way is checked again if no
	// event reports its end.
	removalPoll = time.Second
)

// Input is everything that decide considers.
type Input struct {
	VM   *api.VirtualMachine
	Seen inventory.Observation
	Now  time.Time
	// Driver is the driver of this controller; empty if the VM's driver does not
	// run here.
	Driver string
	// Drivers are the drivers that run here, for messages.
	Drivers []string
	// Epoch is the epoch of the leader that decides.
	Epoch int64
	// Done is the operation that has just succeeded, if any.
	Done api.OperationType
	// ShownGeneration is the generation of the spec that the driver was last shown.
	ShownGeneration int64
	// Probe is the readiness probe's result for a running server.
	Probe ProbeResult
	// Since has the instants that waits count from.
	Since Instants
	// Unproven says why the server of a VM without a binding may be on another
	// driver's engine.
	Unproven string
}

// Decision is what to do now, and what to report meanwhile.
type Decision struct {
	Action Action
	// Status is reported while the action is taken or, if there is none, until
	// something changes.
	Status StatusIntent
	// Wake is when to reconcile again even if nothing happens.
	Wake time.Time
	// NextTry is when the operation that failed is tried again.
	NextTry time.Time
}

// Step is the action to take now.
type Step int

const (
	StepNone Step = iota
	StepEnsure
	StepDelete
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
	// RecordFirst writes the operation to the status before it is taken.
	RecordFirst bool
	// Retain releases the server instead of removing it.
	Retain bool
	// AllDrivers queries every driver before the finalizer is removed.
	AllDrivers bool
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

// Decide is the policy: it returns what to do about vm, given its observed server.
func Decide(in Input) Decision {
	var d Decision
	switch {
	case in.VM.DeletionTimestamp != nil:
		d = decideDeletion(in)
	case engineMismatch(in) != "":
		d = decideMismatch(in)
	case in.Seen.Answer == inventory.Unknown:
		d = decideUnknown(in)
	case !IsBound(in.VM):
		d = Decision{Status: StatusIntent{Unchanged: true}, Wake: in.Now.Add(bindRetry)}
	case len(in.Seen.Duplicates) > 0:
		d = Decision{Status: StatusIntent{Phase: api.PhaseFailed, Reason: api.ReasonDuplicate, Message: duplicateText(in)}}
	case isOnHold(in):
		d = decideHold(in)
	default:
		d = decidePower(in)
	}
	if isFetching(in, d) {
		d.Action.Step, d.Status.Reason, d.Status.Message = StepNone, api.ReasonFetching, in.Seen.Server.Progress
	}
	// A server that was just created has no run that a restart could end.
	d.Status.RestartHandled = d.Status.RestartHandled || !isRestartWanted(in) || in.Done == api.OperationCreate
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
		return fmt.Sprintf("the VirtualMachine is bound to %s, and driver %s does not run here (%s)", AnnotationOf(bound), bound.Driver, strings.Join(in.Drivers, ", "))
	case bound.EngineID != "" && in.Seen.EngineID != "" && bound.EngineID != in.Seen.EngineID:
		return fmt.Sprintf("the VirtualMachine is bound to %s, and the %s engine that answers is %s", AnnotationOf(bound), in.Driver, in.Seen.EngineID)
	}
	return ""
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
	return Decision{Status: StatusIntent{Phase: api.PhaseUnknown, Reason: unknownReason(in), Message: in.Seen.Cause.Error(), Unobserved: true}}
}

func unknownReason(in Input) string {
	if in.Seen.Fenced {
		return api.ReasonFenced
	}
	return api.ReasonEngineUnavailable
}

// decideShortOutage waits without reporting: for the first list, and for an outage that
// may end in a moment.
func decideShortOutage(in Input) (Decision, bool) {
	switch {
	case in.Seen.Fenced:
		return Decision{}, false
	case in.Seen.DownSince.IsZero():
		return Decision{Status: StatusIntent{Unchanged: true}}, true
	}
	shown := in.Seen.DownSince.Add(OutageDelay)
	return Decision{Status: StatusIntent{Unchanged: true}, Wake: shown}, in.Now.Before(shown)
}

func duplicateText(in Input) string {
	return fmt.Sprintf("%d servers carry the UID %s (%s): remove all but one", len(in.Seen.Duplicates), in.VM.UID, strings.Join(in.Seen.Duplicates, ", "))
}

// decidePower compares the server with the desired power state.
func decidePower(in Input) Decision {
	power := powerOf(in.VM)
	if in.Seen.Answer == inventory.Gone {
		return planCreation(in, power)
	}
	switch in.Seen.Server.State {
	case driver.StatePending:
		return decidePending(in, power)
	case driver.StateRemoving:
		return planWait(in, api.OperationCreate, api.ReasonTerminating, "waits for the server that is being removed")
	case driver.StateStopping:
		return decideStopping(in, power)
	case driver.StateRunning, driver.StateStarting, driver.StatePaused, driver.StateStopped, driver.StateRestarting:
	}
	switch power {
	case driver.PowerOff:
		return decideOff(in)
	case driver.PowerPaused:
		return decidePaused(in)
	case driver.PowerOn:
	}
	return decideOn(in)
}

func powerOf(vm *api.VirtualMachine) driver.Power {
	switch vm.Spec.Action {
	case api.ActionStopped:
		return driver.PowerOff
	case api.ActionPaused:
		return driver.PowerPaused
	case api.ActionActive:
	}
	return driver.PowerOn
}

func planCreation(in Input, power driver.Power) Decision {
	d := planEnsure(in, api.OperationCreate, power, api.ReasonCreating, "")
	d.Status.RestartHandled = in.Done == api.OperationCreate
	return d
}

// isFetching reports whether the operation was requested already and waits for an
// image. The existing server stays as it is meanwhile.
func isFetching(in Input, d Decision) bool {
	server := in.Seen.Server
	if d.Action.Step != StepEnsure || d.Action.RecordFirst || server.Progress == "" || server.Err != nil || server.State == driver.StatePending || server.State == driver.StateStopping {
		return false
	}
	op := in.VM.Status.Operation
	asked := op != nil && op.Type == d.Action.Operation && op.NextRetryTime == nil && in.ShownGeneration == in.VM.Generation
	return in.Done == d.Action.Operation || asked
}

// decidePending waits for a fetch. It continues when the fetch has ended or the
// spec has changed.
func decidePending(in Input, power driver.Power) Decision {
	server := in.Seen.Server
	if server.Progress != "" && server.Err == nil && in.ShownGeneration == in.VM.Generation {
		return planWait(in, api.OperationCreate, api.ReasonFetching, server.Progress)
	}
	return planCreation(in, power)
}

// decideStopping waits for a stop, whatever requested it, and forces it when the
// grace period is over.
func decideStopping(in Input, power driver.Power) Decision {
	operation := api.OperationStop
	end := ""
	if op := in.VM.Status.Operation; op != nil && op.Type == api.OperationRestart {
		operation, end = api.OperationRestart, op.Run
	} else {
		power = driver.PowerOff
	}
	d := planEnsure(in, operation, power, api.ReasonStopping, in.Seen.Server.Progress)
	d.Action.EndRun = end
	if in.Now.Before(d.Action.StopBy) {
		d.Action.Step, d.Wake = StepNone, d.Action.StopBy
	}
	return d
}

func decideOff(in Input) Decision {
	if in.Seen.Server.State != driver.StateStopped {
		return planEnsure(in, api.OperationStop, driver.PowerOff, api.ReasonStopping, "")
	}
	if needsUpdate(in) {
		return planEnsure(in, api.OperationUpdate, driver.PowerOff, api.ReasonUpdating, "")
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseStopped, Reason: api.ReasonStoppedAsAsked, Ready: true, RestartHandled: true, StoppedBySpec: true, Message: in.Seen.Server.Note}}
}

func decidePaused(in Input) Decision {
	switch in.Seen.Server.State {
	case driver.StatePaused:
		if needsUpdate(in) {
			return planEnsure(in, api.OperationUpdate, driver.PowerPaused, api.ReasonUpdating, "")
		}
		return Decision{Status: StatusIntent{Phase: api.PhasePaused, Reason: api.ReasonPausedAsAsked, Ready: true, RestartHandled: true, Message: in.Seen.Server.Note}}
	case driver.StateStarting:
		return planWait(in, api.OperationStart, api.ReasonStarting, in.Seen.Server.Progress)
	case driver.StateStopped, driver.StateRestarting:
		return planEnsure(in, api.OperationStart, driver.PowerPaused, api.ReasonStarting, "")
	case driver.StateRunning, driver.StatePending, driver.StateStopping, driver.StateRemoving:
	}
	return planEnsure(in, api.OperationPause, driver.PowerPaused, api.ReasonUpdating, "")
}

func decideOn(in Input) Decision {
	if d, restarts := decideRestart(in); restarts {
		return d
	}
	return decideWithoutRestart(in)
}

// decideWithoutRestart handles a server that must be on and needs no restart.
func decideWithoutRestart(in Input) Decision {
	switch in.Seen.Server.State {
	case driver.StatePaused:
		return planEnsure(in, api.OperationResume, driver.PowerOn, api.ReasonStarting, "")
	case driver.StateStarting:
		return planWait(in, api.OperationStart, api.ReasonStarting, in.Seen.Server.Progress)
	case driver.StateStopped:
		return decideEnded(in)
	case driver.StateRunning, driver.StateRestarting, driver.StatePending, driver.StateStopping, driver.StateRemoving:
	}
	switch {
	case needsUpdate(in):
		return planEnsure(in, api.OperationUpdate, driver.PowerOn, api.ReasonUpdating, "")
	case in.Seen.Server.State == driver.StateRestarting:
		return planEngineRestart(in)
	}
	return planRunning(in)
}

// isRestartWanted reports whether spec.restartedAt requests a restart that was not
// done. A value that is present when the VM is first seen requests none.
func isRestartWanted(in Input) bool {
	want, have := in.VM.Spec.RestartedAt, in.VM.Status.RestartedAt
	if op := in.VM.Status.Operation; isRestartDone(in) {
		if op.RestartedAt == nil {
			return false // begun by an older version
		}
		have = op.RestartedAt
	}
	return want != nil && !want.Equal(have) && in.VM.Status.ObservedGeneration > 0
}

// isRestartDone reports whether the run that a restart must end is over and another
// has begun, however that one ended.
func isRestartDone(in Input) bool {
	op, run := in.VM.Status.Operation, in.Seen.Server.Run
	return op != nil && op.Type == api.OperationRestart && run != "" && run != op.Run
}

// decideRestart continues a restart that the status records, or begins one. The run
// that it ends is recorded first, so that no crash repeats the restart. The value
// that it answers is recorded with it, so that a value set later is not lost.
func decideRestart(in Input) (Decision, bool) {
	op := in.VM.Status.Operation
	under := op != nil && op.Type == api.OperationRestart && !isRestartDone(in)
	if !under && (!isRestartWanted(in) || in.Done == api.OperationCreate) {
		return Decision{}, false
	}
	d := planEnsure(in, api.OperationRestart, driver.PowerOn, api.ReasonRestarting, "")
	// The stop has yet to begin: what precedes it must not use up the grace period.
	d.Action.StopBy = in.Now.Add(GracePeriodOf(in.VM))
	d.Action.EndRun, d.Action.RecordFirst = in.Seen.Server.Run, true
	if under {
		d.Action.EndRun, d.Action.RecordFirst = op.Run, in.Seen.Server.Run == op.Run && isOutdated(in.VM)
	}
	return d, true
}

// isOutdated reports whether the restart under way answers an older value than the
// one in the spec. If its run has not been ended yet, it answers the new value too.
func isOutdated(vm *api.VirtualMachine) bool {
	want, have := vm.Spec.RestartedAt, vm.Status.Operation.RestartedAt
	return want != nil && have != nil && !want.Equal(have)
}

func planEngineRestart(in Input) Decision {
	text := "the engine restarts the server"
	if exit := in.Seen.Server.Exit; exit != nil {
		text += ", which " + ExitText(exit)
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseActive, Reason: api.ReasonRestarting, Message: text}}
}

// decideEnded applies the restart policy to a server that is off.
func decideEnded(in Input) Decision {
	exit := in.Seen.Server.Exit
	if exit == nil || exit.Reason == driver.ExitHostShutdown || IsStoppedByDrover(in) {
		return planEnsure(in, api.OperationStart, driver.PowerOn, api.ReasonStarting, "")
	}
	policy := in.VM.Spec.RestartPolicy
	switch {
	case exit.Code == 0 && policy != api.RestartAlways && policy != "":
		return Decision{Status: StatusIntent{Phase: api.PhaseStopped, Reason: api.ReasonCompleted, Message: "the server " + ExitText(exit), Ready: true}}
	case exit.Code != 0 && policy == api.RestartNever:
		return Decision{Status: StatusIntent{Phase: api.PhaseFailed, Reason: api.ReasonExited, Message: "the server " + ExitText(exit), Stalled: true}}
	}
	return planStartAgain(in, exit)
}

// IsStoppedByDrover reports whether the server is off because Drover ended its run on
// request, or is about to.
func IsStoppedByDrover(in Input) bool {
	status := &in.VM.Status
	if op := status.Operation; op != nil && op.Type == api.OperationStop {
		return true
	}
	return status.Server != nil && status.Server.StoppedRun != "" && status.Server.StoppedRun == in.Seen.Server.Run
}

// planStartAgain starts a server that ended by itself: at once after a stable run, with
// growing delays after runs that were too short.
func planStartAgain(in Input, exit *driver.Exit) Decision {
	d := planEnsure(in, api.OperationStart, driver.PowerOn, api.ReasonRestarting, "the server "+ExitText(exit))
	attempts := crashCount(in)
	if attempts == 0 {
		return d
	}
	at := in.Since.Exit.Add(Backoff(attempts, false))
	if in.Now.Before(at) {
		d.Action.Step, d.Wake, d.Status.Phase = StepNone, at, api.PhaseFailed
	}
	return d
}

// IsCrashing reports whether an operation counts runs that ended too soon, rather
// than failed calls.
func IsCrashing(op *api.Operation) bool { return op != nil && op.Failure == api.FailureExited }

// crashCount returns how many runs in a row ended before they were stable. After
// the first, the server is restarted at once.
func crashCount(in Input) int32 {
	op := in.VM.Status.Operation
	if !IsCrashing(op) || runTime(in) >= stableRun {
		return 0
	}
	return op.Attempts
}

// runTime returns how long the run that is over has lasted: by this process's clock
// if it saw the run, else by the engine's.
func runTime(in Input) time.Duration {
	if !in.Since.Run.IsZero() {
		return in.Since.Exit.Sub(in.Since.Run)
	}
	return in.Seen.Server.Exit.At.Sub(in.Seen.Server.StartedAt)
}

func ExitText(exit *driver.Exit) string {
	switch {
	case exit.Code == 0:
		return "ended by itself with code 0"
	case exit.Reason != "" && exit.Reason != "Error":
		return fmt.Sprintf("ended with code %d (%s)", exit.Code, exit.Reason)
	}
	return fmt.Sprintf("ended with code %d", exit.Code)
}

// planRunning returns the Decision for a server that runs as specified. After short
// runs it keeps the count until the run has proven stable.
func planRunning(in Input) Decision {
	server := in.Seen.Server
	d := Decision{Status: StatusIntent{Phase: api.PhaseActive, Reason: api.ReasonRunning, Message: server.Note, Ready: true}}
	switch {
	case server.Err != nil:
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonUnresponsive, server.Err.Error()
	case in.Probe.Wanted && !in.Probe.OK && !hasProbePassed(in):
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonProbeFailing, in.Probe.Message
	case refusedField(in) != nil: // decide reports it, for every settled state
	case len(pendingFields(in)) > 0:
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonChangePending, PendingText(pendingFields(in))
	}
	stable := in.Since.Run.Add(stableRun)
	if IsCrashing(in.VM.Status.Operation) && in.Now.Before(stable) {
		d.Action.Operation, d.Wake = api.OperationStart, stable
	}
	return d
}

// hasProbePassed reports whether a probe that was not asked yet had passed before
// this controller started: the run is the same, and it was ready.
func hasProbePassed(in Input) bool {
	status := &in.VM.Status
	return !in.Probe.Completed && conditionTrue(status.Conditions, api.ConditionReady) && status.StartTime != nil && !HasRestarted(status, in.Seen.Server)
}

// needsUpdate reports whether the driver must be shown the spec: it has not seen
// this generation, or the server differs from the spec.
func needsUpdate(in Input) bool {
	if in.VM.Generation != in.ShownGeneration {
		return true
	}
	if len(pendingFields(in)) > 0 {
		return in.Done == "" && HasRestarted(&in.VM.Status, in.Seen.Server)
	}
	return hasDrifted(in.VM, in.Seen.Server.Applied)
}

// pendingFields returns the fields that wait for a restart, as Ensure last
// reported.
func pendingFields(in Input) []string {
	if in.Seen.Answer == inventory.Gone {
		return nil
	}
	return in.VM.Status.PendingFields
}

func PendingText(fields []string) string {
	return strings.Join(fields, ", ") + ": applied at the next restart (change spec.restartedAt to restart now)"
}

// refusedField returns the field that the server cannot have, as Ensure last
// reported.
func refusedField(in Input) *api.RefusedField {
	if in.Seen.Answer == inventory.Gone {
		return nil
	}
	return in.VM.Status.RefusedField
}

func HasRestarted(status *api.VirtualMachineStatus, server driver.Server) bool {
	return status.StartTime != nil && !server.StartedAt.IsZero() && !status.StartTime.Time.Equal(server.StartedAt.Truncate(time.Microsecond))
}

// hasDrifted reports whether the server's size was changed outside of Drover.
func hasDrifted(vm *api.VirtualMachine, have driver.Resources) bool {
	want := ResourcesOf(vm)
	return have.CPUMilli != 0 && have.CPUMilli != want.CPUMilli ||
		have.MemoryBytes != 0 && have.MemoryBytes != want.MemoryBytes
}

// planEnsure returns a plan to call the driver's Ensure.
func planEnsure(in Input, operation api.OperationType, power driver.Power, reason, message string) Decision {
	d := planWait(in, operation, reason, message)
	d.Action.Step, d.Action.Power = StepEnsure, power
	d.Action.StopBy = beganAt(in, operation).Add(GracePeriodOf(in.VM))
	return d
}

// planWait returns a plan to let an operation that is under way continue.
func planWait(in Input, operation api.OperationType, reason, message string) Decision {
	phase := api.PhaseCreating
	if in.Seen.Answer == inventory.Present {
		switch in.Seen.Server.State {
		case driver.StateRunning, driver.StateStopping, driver.StateRestarting:
			phase = api.PhaseActive
		case driver.StatePaused:
			phase = api.PhasePaused
		case driver.StateStopped, driver.StateStarting, driver.StatePending, driver.StateRemoving:
		}
	}
	return Decision{Action: Action{Operation: operation}, Status: StatusIntent{Phase: phase, Reason: reason, Message: message}}
}

// beganAt returns when the operation began, by this process's clock.
func beganAt(in Input, operation api.OperationType) time.Time {
	if op := in.VM.Status.Operation; op != nil && op.Type == operation {
		return in.Since.Operation
	}
	return in.Now
}

func GracePeriodOf(vm *api.VirtualMachine) time.Duration {
	if s := vm.Spec.ShutdownGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}
