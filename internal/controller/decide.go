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
	// outageShown is how long an outage lasts before a status tells of it.
	outageShown = 5 * time.Second
	// stableRun is how long a run must last before its end counts as a first.
	stableRun = 10 * time.Second
	// bindRetry is how soon a VM is looked at again that was not bound because the
	// engine became known a moment too late.
	bindRetry = time.Second
	// removalPoll is how soon a removal under way is looked at again if no event
	// tells of its end.
	removalPoll = time.Second
)

// input is all that decide looks at.
type input struct {
	vm   *api.VirtualMachine
	seen inventory.Observation
	now  time.Time
	// driver that this lane runs, empty where none of the lanes runs the VM's.
	driver string
	// drivers that run here, for messages.
	drivers []string
	// epoch of the leader that decides.
	epoch int64
	// did is the operation that has just succeeded, if any.
	did api.OperationType
	// shown is the generation of the spec that the driver was last shown.
	shown int64
	// probe is what the readiness probe says of a running server.
	probe probeState
	// since has the instants that waits count from.
	since since
	// elsewhere says why the server of a VM without a binding may be on another
	// driver's engine.
	elsewhere string
}

// step is what is to be done now.
type step int

const (
	stepNone step = iota
	stepEnsure
	stepDelete
	stepFinish
)

// plan is what decide wants: one step, and what the status says while it is
// taken or, without a step, as long as nothing changes.
type plan struct {
	step step
	// operation is under way, about to be taken, or failing; empty when the
	// server is as it should be.
	operation api.OperationType
	power     driver.Power
	stopBy    time.Time
	endRun    string
	// intent has the operation written to the status before it is taken.
	intent bool
	// retain releases the server in place of removing it.
	retain bool
	// everywhere has every driver asked before the finalizer is removed.
	everywhere bool
	// wake is when to look again even if nothing happens.
	wake time.Time
	// nextTry is when the operation that failed is tried again.
	nextTry time.Time
	// quiet leaves the status as it is.
	quiet bool
	// handled marks spec.restartedAt as done.
	handled bool
	// stopped is set where the server is off because the spec says so.
	stopped bool

	phase           api.Phase
	reason, message string
	ready, stalled  bool
	// unobserved is set while the engine cannot be asked.
	unobserved bool
	// blocked is set while a deletion waits for something to be mended.
	blocked bool
	// pending are the fields of the spec that wait for a restart, and refused is
	// the one that the server cannot have.
	pending []string
	refused *api.RefusedField
}

// decide is the policy: what to do about vm, given what was seen of its server.
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
	// A server that was just made has no run that a restart could end.
	p.handled = p.handled || !isRestartWanted(in) || in.did == api.OperationCreate
	p.pending, p.refused = pendingFields(in), refusedField(in)
	if p.refused != nil && p.ready {
		p.ready, p.stalled, p.reason, p.message = false, true, p.refused.Reason, p.refused.Message
	}
	return p
}

// engineMismatch says why the engine of this driver is not the VM's, or nothing.
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

// decideMismatch waits: another engine's answer proves nothing about the
// server. Only a VM that was never bound is refused.
func decideMismatch(in input) plan {
	if BindingOf(in.vm).Driver == "" {
		return plan{phase: api.PhaseFailed, reason: api.ReasonUnknownDriver, message: engineMismatch(in), stalled: true}
	}
	return plan{phase: api.PhaseUnknown, reason: api.ReasonEngineMismatch, message: engineMismatch(in), unobserved: true}
}

// decideUnknown waits for the engine, and says so once the outage has lasted.
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

// shortOutage waits without a word: for the first list, and for an outage that
// may be over in a moment.
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

// isFetching tells whether the operation has been asked for already and waits for
// an image, while the server that is there stays as it is.
func isFetching(in input, p plan) bool {
	server := in.seen.Server
	if p.step != stepEnsure || p.intent || server.Progress == "" || server.Err != nil || server.State == driver.StatePending || server.State == driver.StateStopping {
		return false
	}
	op := in.vm.Status.Operation
	asked := op != nil && op.Type == p.operation && op.NextRetryTime == nil && in.shown == in.vm.Generation
	return in.did == p.operation || asked
}

// decidePending waits for a fetch, and goes on when it has ended or when the
// spec has changed.
func decidePending(in input, power driver.Power) plan {
	server := in.seen.Server
	if server.Progress != "" && server.Err == nil && in.shown == in.vm.Generation {
		return planWait(in, api.OperationCreate, api.ReasonFetching, server.Progress)
	}
	return planCreation(in, power)
}

// decideStopping waits for a stop, whoever asked for it, and forces it when
// its time is over.
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

// decideKeptOn sees to a server that is to be on and needs no restart.
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

// isRestartWanted tells whether spec.restartedAt asks for a restart that was not
// done. A value that is there when the VM is first seen asks for none.
func isRestartWanted(in input) bool {
	want, have := in.vm.Spec.RestartedAt, in.vm.Status.RestartedAt
	if op := in.vm.Status.Operation; isRestartDone(in) {
		if op.RestartedAt == nil {
			return false // an older version began it
		}
		have = op.RestartedAt
	}
	return want != nil && !want.Equal(have) && in.vm.Status.ObservedGeneration > 0
}

// isRestartDone tells whether the run that a restart is to end is over and another
// one has begun, however that ended.
func isRestartDone(in input) bool {
	op, run := in.vm.Status.Operation, in.seen.Server.Run
	return op != nil && op.Type == api.OperationRestart && run != "" && run != op.Run
}

// decideRestart carries a restart on that the status tells of, or begins one.
// The run that it ends is written down first, so that no crash repeats it, and with
// it the value that it answers, so that none set later is lost.
func decideRestart(in input) (plan, bool) {
	op := in.vm.Status.Operation
	under := op != nil && op.Type == api.OperationRestart && !isRestartDone(in)
	if !under && (!isRestartWanted(in) || in.did == api.OperationCreate) {
		return plan{}, false
	}
	p := planEnsure(in, api.OperationRestart, driver.PowerOn, api.ReasonRestarting, "")
	// The stop is still to begin: what comes before it takes nothing of its time.
	p.stopBy = in.now.Add(gracePeriodOf(in.vm))
	p.endRun, p.intent = in.seen.Server.Run, true
	if under {
		p.endRun, p.intent = op.Run, in.seen.Server.Run == op.Run && isOutdated(in.vm)
	}
	return p, true
}

// isOutdated reports whether the restart under way answers an older value than the
// spec has. It answers that one too if its run has not been ended yet.
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

// startAgain starts a server that ended by itself: at once after a run that
// lasted, ever later after runs that did not.
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

// isCrashing reports whether an operation counts runs that ended too soon, and not
// failed calls.
func isCrashing(op *api.Operation) bool { return op != nil && op.Failure == api.FailureExited }

// crashCount counts the runs in a row that ended before they were stable; the
// first one is started again at once.
func crashCount(in input) int32 {
	op := in.vm.Status.Operation
	if !isCrashing(op) || runTime(in) >= stableRun {
		return 0
	}
	return op.Attempts
}

// runTime is how long the run that is over has lasted: by our own clock if we saw
// it running, else by the engine's.
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

// planRunning is the plan for a server that is as it should be. After quick ends it
// keeps count until the run has proven stable.
func planRunning(in input) plan {
	server := in.seen.Server
	p := plan{phase: api.PhaseActive, reason: api.ReasonRunning, message: server.Note, ready: true}
	switch {
	case server.Err != nil:
		p.ready, p.reason, p.message = false, api.ReasonUnresponsive, server.Err.Error()
	case in.probe.wanted && !in.probe.ok && !hasProbePassed(in):
		p.ready, p.reason, p.message = false, api.ReasonProbeFailing, in.probe.text
	case refusedField(in) != nil: // decide reports it, for every state at rest
	case len(pendingFields(in)) > 0:
		p.ready, p.reason, p.message = false, api.ReasonChangePending, pendingText(pendingFields(in))
	}
	stable := in.since.run.Add(stableRun)
	if isCrashing(in.vm.Status.Operation) && in.now.Before(stable) {
		p.operation, p.wake = api.OperationStart, stable
	}
	return p
}

// hasProbePassed tells whether a probe that was not asked yet had answered before
// this controller came: the run is the same, and it was ready.
func hasProbePassed(in input) bool {
	status := &in.vm.Status
	return !in.probe.asked && conditionTrue(status.Conditions, api.ConditionReady) && status.StartTime != nil && !hasStartedAnew(status, in.seen.Server)
}

// needsUpdate tells whether the driver must be shown the spec: it has not seen
// this generation, or the server is not what the spec says.
func needsUpdate(in input) bool {
	if in.vm.Generation != in.shown {
		return true
	}
	if len(pendingFields(in)) > 0 {
		return in.did == "" && hasStartedAnew(&in.vm.Status, in.seen.Server)
	}
	return hasDrifted(in.vm, in.seen.Server.Applied)
}

// pendingFields are the fields that wait for a restart, as Ensure said last.
func pendingFields(in input) []string {
	if in.seen.Answer == inventory.Gone {
		return nil
	}
	return in.vm.Status.PendingFields
}

func pendingText(fields []string) string {
	return strings.Join(fields, ", ") + ": applied at the next restart (change spec.restartedAt to restart now)"
}

// refusedField is the field that the server cannot have, as Ensure said last.
func refusedField(in input) *api.RefusedField {
	if in.seen.Answer == inventory.Gone {
		return nil
	}
	return in.vm.Status.RefusedField
}

func hasStartedAnew(status *api.VirtualMachineStatus, server driver.Server) bool {
	return status.StartTime != nil && !server.StartedAt.IsZero() && !status.StartTime.Time.Equal(server.StartedAt.Truncate(time.Microsecond))
}

// hasDrifted tells whether somebody changed the server's size behind our back.
func hasDrifted(vm *api.VirtualMachine, have driver.Resources) bool {
	want := resourcesOf(vm)
	return have.CPUMilli != 0 && have.CPUMilli != want.CPUMilli ||
		have.MemoryBytes != 0 && have.MemoryBytes != want.MemoryBytes
}

// planEnsure is a plan to call the driver's Ensure.
func planEnsure(in input, operation api.OperationType, power driver.Power, reason, message string) plan {
	p := planWait(in, operation, reason, message)
	p.step, p.power = stepEnsure, power
	p.stopBy = beganAt(in, operation).Add(gracePeriodOf(in.vm))
	return p
}

// planWait is a plan to let an operation that is under way go on.
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

// beganAt is when the operation began, by this process's clock.
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
