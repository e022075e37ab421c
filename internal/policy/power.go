// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/inventory"
)

// decidePower compares the server with the desired power state.
func decidePower(in Input) Decision {
	power := powerOf(in.VM)
	if in.Observed.Answer == inventory.Gone {
		return planCreation(in, power)
	}
	switch in.Observed.Server.State {
	case driver.StatePending:
		return decidePending(in, power)
	case driver.StateRemoving:
		return planWait(in, creatingOperation(in, power), api.ReasonTerminating, "waits for the server that is being removed")
	case driver.StateStopping:
		return decideStopping(in, power)
	case driver.StateUnknown:
		return decideLost(in, power)
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

// decideLost asks the driver for a server that may run or not. The driver fails until that is
// known again.
func decideLost(in Input, power driver.Power) Decision {
	operation := api.OperationStart
	if power == driver.PowerOff {
		operation = api.OperationStop
	}
	return planEnsure(in, operation, power, api.ReasonUnresponsive, in.Observed.Server.Err.Error())
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

// planCreation returns the decision to make the server. A start after a crash goes on: an ephemeral server
// is gone between two runs, and its crashes still count.
func planCreation(in Input, power driver.Power) Decision {
	op := creatingOperation(in, power)
	if op != api.OperationStart {
		return planEnsure(in, op, power, api.ReasonCreating, "")
	}
	d := planEnsure(in, op, power, api.ReasonRestarting, in.VM.Status.Operation.LastError)
	d.Action.ShortRuns, d.Action.CrashedRun = in.VM.Status.Operation.Attempts, in.VM.Status.Operation.Run
	return d
}

// creatingOperation returns the operation that makes a server which is gone, or about to be.
func creatingOperation(in Input, power driver.Power) api.OperationType {
	isPending := in.Observed.Answer == inventory.Present && in.Observed.Server.State == driver.StatePending
	if power != driver.PowerOff && !isPending && IsCrashing(in.VM.Status.Operation) {
		return api.OperationStart
	}
	return api.OperationCreate
}

// isWaiting reports whether the operation was requested already and waits: for an image, or until the
// engine has removed the last run. The existing server is unchanged meanwhile.
func isWaiting(in Input, d Decision) bool {
	server := in.Observed.Server
	if d.Action.Step != StepEnsure || d.Action.RecordFirst || server.NeedsEnsure || server.Progress == "" || server.Err != nil || server.State == driver.StatePending || server.State == driver.StateStopping {
		return false
	}
	op := in.VM.Status.Operation
	requested := op != nil && op.Type == d.Action.Operation && op.NextRetryTime == nil && in.PassedGeneration == in.VM.Generation
	return in.Done == d.Action.Operation || requested
}

// decidePending waits for a fetch. It continues when the fetch has ended or the
// spec has changed.
func decidePending(in Input, power driver.Power) Decision {
	server := in.Observed.Server
	if server.Progress != "" && server.Err == nil && in.PassedGeneration == in.VM.Generation {
		return planWait(in, api.OperationCreate, api.ReasonFetching, server.Progress)
	}
	return planCreation(in, power)
}

// decideStopping waits for a stop, whatever requested it, and forces it when the
// grace period is over. A guest that has ended by itself, while other parts of its server,
// such as a sidecar, have not, is not being stopped.
func decideStopping(in Input, power driver.Power) Decision {
	operation := api.OperationStop
	end := ""
	switch op := in.VM.Status.Operation; {
	case op != nil && op.Type == api.OperationRestart:
		operation, end = api.OperationRestart, op.Run
	case in.Observed.Server.Exit != nil && power != driver.PowerOff && !isRestartWanted(in) && (op == nil || op.Type != api.OperationStop):
		return planEndedGuest(in, power)
	default:
		power = driver.PowerOff
	}
	d := planEnsure(in, operation, power, api.ReasonStopping, in.Observed.Server.Progress)
	d.Action.EndRun = end
	if isEndedByOthers(in, operation) {
		d.Action.StopBy = time.Time{}
	}
	switch wait := d.Action.StopBy; {
	case in.Observed.Server.NeedsEnsure, in.Observed.Server.Exit != nil: // no guest is left to wait for
	case wait.IsZero():
		d.Action.Step = StepNone
	case in.Now.Before(wait):
		d.Action.Step, d.WakeAt = StepNone, wait
	}
	return d
}

// planEndedGuest waits for the other parts of a server whose guest has ended by itself.
func planEndedGuest(in Input, power driver.Power) Decision {
	server := in.Observed.Server
	if server.NeedsEnsure {
		return planEnsure(in, api.OperationUpdate, power, api.ReasonStopping, server.Progress)
	}
	return planWait(in, operationOf(in.VM), api.ReasonStopping, server.Progress)
}

// operationOf returns the operation that the status has recorded, if any.
func operationOf(vm *api.VirtualMachine) api.OperationType {
	if vm.Status.Operation == nil {
		return ""
	}
	return vm.Status.Operation.Type
}

// isEndedByOthers reports whether others than Drover end a run that the spec wants, as a drain does: with a
// grace period of their own, which the engine keeps to.
func isEndedByOthers(in Input, operation api.OperationType) bool {
	return in.Observed.Server.Disruption != "" && operation == api.OperationStop && powerOf(in.VM) != driver.PowerOff
}

func decideOff(in Input) Decision {
	if in.Observed.Server.State != driver.StateStopped {
		return planEnsure(in, api.OperationStop, driver.PowerOff, api.ReasonStopping, "")
	}
	if needsUpdate(in) {
		return planEnsure(in, api.OperationUpdate, driver.PowerOff, api.ReasonUpdating, "")
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseStopped, Reason: api.ReasonStoppedAsAsked, Ready: true, RestartHandled: true, StoppedBySpec: true, Message: in.Observed.Server.Note}}
}

func decidePaused(in Input) Decision {
	switch in.Observed.Server.State {
	case driver.StatePaused:
		if needsUpdate(in) {
			return planEnsure(in, api.OperationUpdate, driver.PowerPaused, api.ReasonUpdating, "")
		}
		return planPaused(in)
	case driver.StateStarting:
		return decideStarting(in, driver.PowerPaused)
	case driver.StateStopped, driver.StateRestarting:
		if hasNeverRun(in) {
			return planStartAgain(in, driver.PowerPaused)
		}
		return planEnsure(in, api.OperationStart, driver.PowerPaused, api.ReasonStarting, "")
	case driver.StateRunning, driver.StatePending, driver.StateStopping, driver.StateRemoving, driver.StateUnknown:
	}
	return planEnsure(in, api.OperationPause, driver.PowerPaused, api.ReasonUpdating, "")
}

// planPaused returns the decision for a server that is frozen as specified.
func planPaused(in Input) Decision {
	d := Decision{Status: StatusIntent{Phase: api.PhasePaused, Reason: api.ReasonPausedAsAsked, Ready: true, RestartHandled: true, Message: in.Observed.Server.Note}}
	if len(pendingFields(in)) > 0 && refusedField(in) == nil {
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonChangePending, PendingText(in.VM, pendingFields(in))
	}
	return d
}

func decideOn(in Input) Decision {
	if d, restarts := decideRestart(in); restarts {
		return d
	}
	return decideWithoutRestart(in)
}

// decideWithoutRestart handles a server that must be on and needs no restart.
func decideWithoutRestart(in Input) Decision {
	switch in.Observed.Server.State {
	case driver.StatePaused:
		return planEnsure(in, api.OperationResume, driver.PowerOn, api.ReasonStarting, "")
	case driver.StateStarting:
		return decideStarting(in, driver.PowerOn)
	case driver.StateStopped:
		return decideEnded(in)
	case driver.StateRunning, driver.StateRestarting, driver.StatePending, driver.StateStopping, driver.StateRemoving, driver.StateUnknown:
	}
	switch {
	case needsUpdate(in):
		return planEnsure(in, api.OperationUpdate, driver.PowerOn, api.ReasonUpdating, "")
	case in.Observed.Server.State == driver.StateRestarting:
		return planEngineRestart(in)
	}
	return planRunning(in)
}

// decideStarting waits for a start, unless the driver has yet to complete what it began. It gets a
// changed spec at once: what the start waits for may be what was changed.
func decideStarting(in Input, power driver.Power) Decision {
	server, reason := in.Observed.Server, api.ReasonStarting
	if server.IsUnschedulable {
		reason = api.ReasonUnschedulable
	}
	if server.NeedsEnsure || in.PassedGeneration != in.VM.Generation {
		return planEnsure(in, api.OperationStart, power, reason, server.Progress)
	}
	return planWait(in, api.OperationStart, reason, server.Progress)
}

func planEngineRestart(in Input) Decision {
	text := "the engine restarts the server"
	if exit := in.Observed.Server.Exit; exit != nil {
		text += ", which " + exitText(exit, false)
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseActive, Reason: api.ReasonRestarting, Message: text}}
}

// planRunning returns the decision for a server that runs as specified. After short
// runs the count continues until the run has proven stable.
func planRunning(in Input) Decision {
	server := in.Observed.Server
	d := Decision{Status: StatusIntent{Phase: api.PhaseActive, Reason: api.ReasonRunning, Message: server.Note, Ready: true}}
	switch {
	case server.Err != nil:
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonUnresponsive, server.Err.Error()
		if server.HostLost {
			d.Status.Phase = api.PhaseUnknown
		}
	case in.Probe.Wanted && !in.Probe.OK && !hasProbePassed(in):
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonProbeFailing, in.Probe.Message
	case refusedField(in) != nil: // Decide reports it, for every settled state
	case len(pendingFields(in)) > 0:
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonChangePending, PendingText(in.VM, pendingFields(in))
	}
	stable := in.Since.Run.Add(stableRun)
	if IsCrashing(in.VM.Status.Operation) && in.Now.Before(stable) {
		d.Action.Operation, d.WakeAt = api.OperationStart, stable
	}
	return d
}

// hasProbePassed reports whether a probe that is not complete yet had passed before
// this controller started: the run is the same, and it was ready.
func hasProbePassed(in Input) bool {
	status := &in.VM.Status
	return !in.Probe.Completed && meta.IsStatusConditionTrue(status.Conditions, api.ConditionReady) && status.StartTime != nil && !HasRestarted(status, in.Observed.Server)
}

// planEnsure returns the decision to call the driver's Ensure.
func planEnsure(in Input, operation api.OperationType, power driver.Power, reason, message string) Decision {
	d := planWait(in, operation, reason, message)
	d.Action.Step, d.Action.Power = StepEnsure, power
	d.Action.StopBy = beganAt(in, operation).Add(GracePeriodOf(in.VM))
	return d
}

// planWait returns the decision to let an operation that is under way continue.
func planWait(in Input, operation api.OperationType, reason, message string) Decision {
	phase := api.PhaseCreating
	if in.Observed.Answer == inventory.Present {
		switch in.Observed.Server.State {
		case driver.StateRunning, driver.StateStopping, driver.StateRestarting:
			phase = api.PhaseActive
		case driver.StatePaused:
			phase = api.PhasePaused
		case driver.StateUnknown:
			phase = api.PhaseUnknown
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

// GracePeriodOf returns how long a guest may take to shut down.
func GracePeriodOf(vm *api.VirtualMachine) time.Duration {
	if s := vm.Spec.ShutdownGracePeriodSeconds; s != nil {
		return time.Duration(*s) * time.Second
	}
	return 30 * time.Second
}

// IsRunning reports whether a server's guest is running.
func IsRunning(observed inventory.Observation) bool {
	return observed.Answer == inventory.Present && observed.Server.State == driver.StateRunning
}
