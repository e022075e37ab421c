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
	// outageShown is how long an outage lasts before a status reports it.
	outageShown = 5 * time.Second
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

// input is everything that decide considers.
type input struct {
	vm   *api.VirtualMachine
	seen inventory.Observation
	now  time.Time
	// driver is the driver of this controller; empty if the VM's driver does not
	// run here.
	driver string
	// drivers are the drivers that run here, for messages.
	drivers []string
	// epoch is the epoch of the leader that decides.
	epoch int64
	// did is the operation that has just succeeded, if any.
	did api.OperationType
	// shown is the generation of the spec that the driver was last shown.
	shown int64
	// probe is the readiness probe's result for a running server.
	probe probeState
	// since has the instants that waits count from.
	since since
	// elsewhere says why the server of a VM without a binding may be on another
	// driver's engine.
	elsewhere string
}

// step is the action to take now.
type step int

const (
	stepNone step = iota
	stepEnsure
	stepDelete
	stepFinish
)

// plan is the result of decide: one step, and the status while the step is taken.
// Without a step, it is the status until something changes.
type plan struct {
	step step
	// operation is under way, about to be taken, or failing. It is empty if the
	// server is as specified.
	operation api.OperationType
	power     driver.Power
	stopBy    time.Time
	endRun    string
	// intent writes the operation to the status before it is taken.
	intent bool
	// retain releases the server instead of removing it.
	retain bool
	// everywhere asks every driver before the finalizer is removed.
	everywhere bool
	// wake is when to reconcile again even if nothing happens.
	wake time.Time
	// nextTry is when the operation that failed is tried again.
	nextTry time.Time
	// quiet leaves the status unchanged.
	quiet bool
	// handled marks spec.restartedAt as done.
	handled bool
	// stopped is set if the server is off because the spec says so.
	stopped bool

	phase           api.Phase
	reason, message string
	ready, stalled  bool
	// unobserved is set while the engine cannot be asked.
	unobserved bool
	// blocked is set while a deletion waits for something to be repaired.
	blocked bool
	// pending are the spec fields that wait for a restart. refused is the field
	// that the server cannot have.
	pending []string
	refused *api.RefusedField
}

// decide is the policy: it returns what to do about vm, given its observed server.
func decide(in input) plan {
	var p plan
	switch {
	case in.vm.DeletionTimestamp != nil:
		p = decideDeletion(in)
	case engineMismatch(in) != "":
		p = decideMismatch(in)
	case in.seen.Answer == inventory.Unknown:
		p = decideUnknown(in)
	case !isBound(in.vm):
		p = plan{quiet: true, wake: in.now.Add(bindRetry)}
	case len(in.seen.Duplicates) > 0:
		p = plan{phase: api.PhaseFailed, reason: api.ReasonDuplicate, message: duplicateText(in)}
	case isOnHold(in):
		p = decideHold(in)
	default:
		p = decidePower(in)
	}
	if isFetching(in, p) {
		p.step, p.reason, p.message = stepNone, api.ReasonFetching, in.seen.Server.Progress
	}
	// A server that was just created has no run that a restart could end.
	p.handled = p.handled || !isRestartWanted(in) || in.did == api.OperationCreate
	p.pending, p.refused = pendingFields(in), refusedField(in)
	if p.refused != nil && p.ready {
		p.ready, p.stalled, p.reason, p.message = false, true, p.refused.Reason, p.refused.Message
	}
	return p
}

// engineMismatch returns why the engine of this driver is not the VM's, or "".
func engineMismatch(in input) string {
	bound := BindingOf(in.vm)
	switch {
	case in.driver == "" && bound.Driver == "":
		return fmt.Sprintf("spec.driver %q is not a driver that runs here (%s)", in.vm.Spec.Driver, strings.Join(in.drivers, ", "))
	case in.driver == "":
		return fmt.Sprintf("the VirtualMachine is bound to %s, and driver %s does not run here (%s)", annotationOf(bound), bound.Driver, strings.Join(in.drivers, ", "))
	case bound.EngineID != "" && in.seen.EngineID != "" && bound.EngineID != in.seen.EngineID:
		return fmt.Sprintf("the VirtualMachine is bound to %s, and the %s engine that answers is %s", annotationOf(bound), in.driver, in.seen.EngineID)
	}
	return ""
}

// decideMismatch waits: another engine's answer proves nothing about the server.
// Only a VM that was never bound is refused.
func decideMismatch(in input) plan {
	if BindingOf(in.vm).Driver == "" {
		return plan{phase: api.PhaseFailed, reason: api.ReasonUnknownDriver, message: engineMismatch(in), stalled: true}
	}
	return plan{phase: api.PhaseUnknown, reason: api.ReasonEngineMismatch, message: engineMismatch(in), unobserved: true}
}

// decideUnknown waits for the engine, and reports an outage only after it has
// lasted.
func decideUnknown(in input) plan {
	if p, short := shortOutage(in); short {
		return p
	}
	return plan{phase: api.PhaseUnknown, reason: unknownReason(in), message: in.seen.Cause.Error(), unobserved: true}
}

func unknownReason(in input) string {
	if in.seen.Fenced {
		return api.ReasonFenced
	}
	return api.ReasonEngineUnavailable
}

// shortOutage waits without reporting: for the first list, and for an outage that
// may end in a moment.
func shortOutage(in input) (plan, bool) {
	switch {
	case in.seen.Fenced:
		return plan{}, false
	case in.seen.DownSince.IsZero():
		return plan{quiet: true}, true
	}
	shown := in.seen.DownSince.Add(outageShown)
	return plan{quiet: true, wake: shown}, in.now.Before(shown)
}

func duplicateText(in input) string {
	return fmt.Sprintf("%d servers carry the UID %s (%s): remove all but one", len(in.seen.Duplicates), in.vm.UID, strings.Join(in.seen.Duplicates, ", "))
}

// decidePower compares the server with the desired power state.
func decidePower(in input) plan {
	power := powerOf(in.vm)
	if in.seen.Answer == inventory.Gone {
		return planCreation(in, power)
	}
	switch in.seen.Server.State {
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

func planCreation(in input, power driver.Power) plan {
	p := planEnsure(in, api.OperationCreate, power, api.ReasonCreating, "")
	p.handled = in.did == api.OperationCreate
	return p
}

// isFetching reports whether the operation was requested already and waits for an
// image. The existing server stays as it is meanwhile.
func isFetching(in input, p plan) bool {
	server := in.seen.Server
	if p.step != stepEnsure || p.intent || server.Progress == "" || server.Err != nil || server.State == driver.StatePending || server.State == driver.StateStopping {
		return false
	}
	op := in.vm.Status.Operation
	asked := op != nil && op.Type == p.operation && op.NextRetryTime == nil && in.shown == in.vm.Generation
	return in.did == p.operation || asked
}

// decidePending waits for a fetch. It continues when the fetch has ended or the
// spec has changed.
func decidePending(in input, power driver.Power) plan {
	server := in.seen.Server
	if server.Progress != "" && server.Err == nil && in.shown == in.vm.Generation {
		return planWait(in, api.OperationCreate, api.ReasonFetching, server.Progress)
	}
	return planCreation(in, power)
}

// decideStopping waits for a stop, whatever requested it, and forces it when the
// grace period is over.
func decideStopping(in input, power driver.Power) plan {
	operation := api.OperationStop
	end := ""
	if op := in.vm.Status.Operation; op != nil && op.Type == api.OperationRestart {
		operation, end = api.OperationRestart, op.Run
	} else {
		power = driver.PowerOff
	}
	p := planEnsure(in, operation, power, api.ReasonStopping, in.seen.Server.Progress)
	p.endRun = end
	if in.now.Before(p.stopBy) {
		p.step, p.wake = stepNone, p.stopBy
	}
	return p
}

func decideOff(in input) plan {
	if in.seen.Server.State != driver.StateStopped {
		return planEnsure(in, api.OperationStop, driver.PowerOff, api.ReasonStopping, "")
	}
	if needsUpdate(in) {
		return planEnsure(in, api.OperationUpdate, driver.PowerOff, api.ReasonUpdating, "")
	}
	return plan{phase: api.PhaseStopped, reason: api.ReasonStoppedAsAsked, ready: true, handled: true, stopped: true, message: in.seen.Server.Note}
}

func decidePaused(in input) plan {
	switch in.seen.Server.State {
	case driver.StatePaused:
		if needsUpdate(in) {
			return planEnsure(in, api.OperationUpdate, driver.PowerPaused, api.ReasonUpdating, "")
		}
		return plan{phase: api.PhasePaused, reason: api.ReasonPausedAsAsked, ready: true, handled: true, message: in.seen.Server.Note}
	case driver.StateStarting:
		return planWait(in, api.OperationStart, api.ReasonStarting, in.seen.Server.Progress)
	case driver.StateStopped, driver.StateRestarting:
		return planEnsure(in, api.OperationStart, driver.PowerPaused, api.ReasonStarting, "")
	case driver.StateRunning, driver.StatePending, driver.StateStopping, driver.StateRemoving:
	}
	return planEnsure(in, api.OperationPause, driver.PowerPaused, api.ReasonUpdating, "")
}

func decideOn(in input) plan {
	if p, restarts := decideRestart(in); restarts {
		return p
	}
	return decideKeptOn(in)
}

// decideKeptOn handles a server that must be on and needs no restart.
func decideKeptOn(in input) plan {
	switch in.seen.Server.State {
	case driver.StatePaused:
		return planEnsure(in, api.OperationResume, driver.PowerOn, api.ReasonStarting, "")
	case driver.StateStarting:
		return planWait(in, api.OperationStart, api.ReasonStarting, in.seen.Server.Progress)
	case driver.StateStopped:
		return decideEnded(in)
	case driver.StateRunning, driver.StateRestarting, driver.StatePending, driver.StateStopping, driver.StateRemoving:
	}
	switch {
	case needsUpdate(in):
		return planEnsure(in, api.OperationUpdate, driver.PowerOn, api.ReasonUpdating, "")
	case in.seen.Server.State == driver.StateRestarting:
		return planEngineRestart(in)
	}
	return planRunning(in)
}

// isRestartWanted reports whether spec.restartedAt requests a restart that was not
// done. A value that is present when the VM is first seen requests none.
func isRestartWanted(in input) bool {
	want, have := in.vm.Spec.RestartedAt, in.vm.Status.RestartedAt
	if op := in.vm.Status.Operation; isRestartDone(in) {
		if op.RestartedAt == nil {
			return false // begun by an older version
		}
		have = op.RestartedAt
	}
	return want != nil && !want.Equal(have) && in.vm.Status.ObservedGeneration > 0
}

// isRestartDone reports whether the run that a restart must end is over and another
// has begun, however that one ended.
func isRestartDone(in input) bool {
	op, run := in.vm.Status.Operation, in.seen.Server.Run
	return op != nil && op.Type == api.OperationRestart && run != "" && run != op.Run
}

// decideRestart continues a restart that the status records, or begins one. The run
// that it ends is recorded first, so that no crash repeats the restart. The value
// that it answers is recorded with it, so that a value set later is not lost.
func decideRestart(in input) (plan, bool) {
	op := in.vm.Status.Operation
	under := op != nil && op.Type == api.OperationRestart && !isRestartDone(in)
	if !under && (!isRestartWanted(in) || in.did == api.OperationCreate) {
		return plan{}, false
	}
	p := planEnsure(in, api.OperationRestart, driver.PowerOn, api.ReasonRestarting, "")
	// The stop has yet to begin: what precedes it must not use up the grace period.
	p.stopBy = in.now.Add(gracePeriodOf(in.vm))
	p.endRun, p.intent = in.seen.Server.Run, true
	if under {
		p.endRun, p.intent = op.Run, in.seen.Server.Run == op.Run && isOutdated(in.vm)
	}
	return p, true
}

// isOutdated reports whether the restart under way answers an older value than the
// one in the spec. If its run has not been ended yet, it answers the new value too.
func isOutdated(vm *api.VirtualMachine) bool {
	want, have := vm.Spec.RestartedAt, vm.Status.Operation.RestartedAt
	return want != nil && have != nil && !want.Equal(have)
}

func planEngineRestart(in input) plan {
	text := "the engine restarts the server"
	if exit := in.seen.Server.Exit; exit != nil {
		text += ", which " + exitText(exit)
	}
	return plan{phase: api.PhaseActive, reason: api.ReasonRestarting, message: text}
}

// decideEnded applies the restart policy to a server that is off.
func decideEnded(in input) plan {
	exit := in.seen.Server.Exit
	if exit == nil || exit.Reason == driver.ExitHostShutdown || isStoppedByDrover(in) {
		return planEnsure(in, api.OperationStart, driver.PowerOn, api.ReasonStarting, "")
	}
	policy := in.vm.Spec.RestartPolicy
	switch {
	case exit.Code == 0 && policy != api.RestartAlways && policy != "":
		return plan{phase: api.PhaseStopped, reason: api.ReasonCompleted, message: "the server " + exitText(exit), ready: true}
	case exit.Code != 0 && policy == api.RestartNever:
		return plan{phase: api.PhaseFailed, reason: api.ReasonExited, message: "the server " + exitText(exit), stalled: true}
	}
	return startAgain(in, exit)
}

// isStoppedByDrover reports whether the server is off because Drover ended its run on
// request, or is about to.
func isStoppedByDrover(in input) bool {
	status := &in.vm.Status
	if op := status.Operation; op != nil && op.Type == api.OperationStop {
		return true
	}
	return status.Server != nil && status.Server.StoppedRun != "" && status.Server.StoppedRun == in.seen.Server.Run
}

// startAgain starts a server that ended by itself: at once after a stable run, with
// growing delays after runs that were too short.
func startAgain(in input, exit *driver.Exit) plan {
	p := planEnsure(in, api.OperationStart, driver.PowerOn, api.ReasonRestarting, "the server "+exitText(exit))
	attempts := crashCount(in)
	if attempts == 0 {
		return p
	}
	at := in.since.exit.Add(backoff(attempts, false))
	if in.now.Before(at) {
		p.step, p.wake, p.phase = stepNone, at, api.PhaseFailed
	}
	return p
}

// isCrashing reports whether an operation counts runs that ended too soon, rather
// than failed calls.
func isCrashing(op *api.Operation) bool { return op != nil && op.Failure == api.FailureExited }

// crashCount returns how many runs in a row ended before they were stable. After
// the first, the server is restarted at once.
func crashCount(in input) int32 {
	op := in.vm.Status.Operation
	if !isCrashing(op) || runTime(in) >= stableRun {
		return 0
	}
	return op.Attempts
}

// runTime returns how long the run that is over has lasted: by this process's clock
// if it saw the run, else by the engine's.
func runTime(in input) time.Duration {
	if !in.since.run.IsZero() {
		return in.since.exit.Sub(in.since.run)
	}
	return in.seen.Server.Exit.At.Sub(in.seen.Server.StartedAt)
}

func exitText(exit *driver.Exit) string {
	switch {
	case exit.Code == 0:
		return "ended by itself with code 0"
	case exit.Reason != "" && exit.Reason != "Error":
		return fmt.Sprintf("ended with code %d (%s)", exit.Code, exit.Reason)
	}
	return fmt.Sprintf("ended with code %d", exit.Code)
}

// planRunning returns the plan for a server that runs as specified. After short
// runs it keeps the count until the run has proven stable.
func planRunning(in input) plan {
	server := in.seen.Server
	p := plan{phase: api.PhaseActive, reason: api.ReasonRunning, message: server.Note, ready: true}
	switch {
	case server.Err != nil:
		p.ready, p.reason, p.message = false, api.ReasonUnresponsive, server.Err.Error()
	case in.probe.wanted && !in.probe.ok && !hasProbePassed(in):
		p.ready, p.reason, p.message = false, api.ReasonProbeFailing, in.probe.text
	case refusedField(in) != nil: // decide reports it, for every settled state
	case len(pendingFields(in)) > 0:
		p.ready, p.reason, p.message = false, api.ReasonChangePending, pendingText(pendingFields(in))
	}
	stable := in.since.run.Add(stableRun)
	if isCrashing(in.vm.Status.Operation) && in.now.Before(stable) {
		p.operation, p.wake = api.OperationStart, stable
	}
	return p
}

// hasProbePassed reports whether a probe that was not asked yet had passed before
// this controller started: the run is the same, and it was ready.
func hasProbePassed(in input) bool {
	status := &in.vm.Status
	return !in.probe.asked && conditionTrue(status.Conditions, api.ConditionReady) && status.StartTime != nil && !hasStartedAnew(status, in.seen.Server)
}

// needsUpdate reports whether the driver must be shown the spec: it has not seen
// this generation, or the server differs from the spec.
func needsUpdate(in input) bool {
	if in.vm.Generation != in.shown {
		return true
	}
	if len(pendingFields(in)) > 0 {
		return in.did == "" && hasStartedAnew(&in.vm.Status, in.seen.Server)
	}
	return hasDrifted(in.vm, in.seen.Server.Applied)
}

// pendingFields returns the fields that wait for a restart, as Ensure last
// reported.
func pendingFields(in input) []string {
	if in.seen.Answer == inventory.Gone {
		return nil
	}
	return in.vm.Status.PendingFields
}

func pendingText(fields []string) string {
	return strings.Join(fields, ", ") + ": applied at the next restart (change spec.restartedAt to restart now)"
}

// refusedField returns the field that the server cannot have, as Ensure last
// reported.
func refusedField(in input) *api.RefusedField {
	if in.seen.Answer == inventory.Gone {
		return nil
	}
	return in.vm.Status.RefusedField
}

func hasStartedAnew(status *api.VirtualMachineStatus, server driver.Server) bool {
	return status.StartTime != nil && !server.StartedAt.IsZero() && !status.StartTime.Time.Equal(server.StartedAt.Truncate(time.Microsecond))
}

// hasDrifted reports whether the server's size was changed outside of Drover.
func hasDrifted(vm *api.VirtualMachine, have driver.Resources) bool {
	want := resourcesOf(vm)
	return have.CPUMilli != 0 && have.CPUMilli != want.CPUMilli ||
		have.MemoryBytes != 0 && have.MemoryBytes != want.MemoryBytes
}

// planEnsure returns a plan to call the driver's Ensure.
func planEnsure(in input, operation api.OperationType, power driver.Power, reason, message string) plan {
	p := planWait(in, operation, reason, message)
	p.step, p.power = stepEnsure, power
	p.stopBy = beganAt(in, operation).Add(gracePeriodOf(in.vm))
	return p
}

// planWait returns a plan to let an operation that is under way continue.
func planWait(in input, operation api.OperationType, reason, message string) plan {
	phase := api.PhaseCreating
	if in.seen.Answer == inventory.Present {
		switch in.seen.Server.State {
		case driver.StateRunning, driver.StateStopping, driver.StateRestarting:
			phase = api.PhaseActive
		case driver.StatePaused:
			phase = api.PhasePaused
		case driver.StateStopped, driver.StateStarting, driver.StatePending, driver.StateRemoving:
		}
	}
	return plan{operation: operation, phase: phase, reason: reason, message: message}
}

// beganAt returns when the operation began, by this process's clock.
func beganAt(in input, operation api.OperationType) time.Time {
	if op := in.vm.Status.Operation; op != nil && op.Type == operation {
		return in.since.operation
	}
	return in.now
}

func gracePeriodOf(vm *api.VirtualMachine) time.Duration {
	if s := vm.Spec.ShutdownGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}
