// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// decidePower decides how the server gets to the power state that the spec wants.
func decidePower(in Input) Decision {
	power := powerOf(in)
	if in.Observed.Answer == Gone {
		return planCreation(in, power)
	}
	switch in.Observed.Server.State {
	case StatePending:
		return decidePending(in, power)
	case StateRemoving:
		return planWait(in, creatingOperation(in, power), api.ReasonTerminating, cmp.Or(in.Observed.Server.Progress, "waits for the server that is being removed"))
	case StateStopping:
		return decideStopping(in, power)
	case StateUnknown:
		return decideLost(in, power)
	case StateRunning, StateStarting, StatePaused, StateStopped, StateRestarting:
	}
	switch power {
	case PowerOff:
		return decideOff(in)
	case PowerPaused:
		return decidePaused(in)
	case PowerOn:
	}
	return decideOn(in)
}

// decideLost calls the driver for a server that may or may not run. The call fails until the driver
// knows whether the server runs.
func decideLost(in Input, power Power) Decision {
	operation := api.OperationStart
	if power == PowerOff {
		operation = api.OperationStop
	}
	return planEnsure(in, operation, power, api.ReasonUnresponsive, in.Observed.Server.Error)
}

func powerOf(in Input) Power {
	switch in.VM.Spec.Action {
	case api.ActionStopped:
		return PowerOff
	case api.ActionPaused:
		return PowerPaused
	case api.ActionActive:
	}
	return PowerOn
}

// planCreation returns the decision to create the server. If the server is being started after a crash, the
// operation stays Start: an ephemeral server is gone between two runs, and its crashes still count.
func planCreation(in Input, power Power) Decision {
	op := creatingOperation(in, power)
	if op != api.OperationStart {
		return planEnsure(in, op, power, api.ReasonCreating, "")
	}
	d := planEnsure(in, op, power, api.ReasonRestarting, in.VM.Status.Operation.LastError)
	d.Action.ShortRuns, d.Action.CrashedRun, d.Action.Evicted = in.VM.Status.Operation.Attempts, in.VM.Status.Operation.Run, in.VM.Status.Operation.Evicted
	return delayStart(in, d, d.Action.ShortRuns-1)
}

// creatingOperation returns the operation that creates a server in place of one that is gone or being removed.
func creatingOperation(in Input, power Power) api.OperationType {
	isPending := in.Observed.Answer == Present && in.Observed.Server.State == StatePending
	if power != PowerOff && !isPending && in.VM.Status.Operation.IsCounting() {
		return api.OperationStart
	}
	return api.OperationCreate
}

// isWaiting reports whether the driver was already asked for the operation and waits for an image, or until
// the engine has removed the last run. Until then the existing server stays unchanged.
func isWaiting(in Input, d Decision) bool {
	server := in.Observed.Server
	if d.Action.Step != StepEnsure || d.Action.RecordFirst || server.NeedsEnsure || server.Progress == "" || server.Error != "" || server.State == StatePending || server.State == StateStopping {
		return false
	}
	op := in.VM.Status.Operation
	requested := op.Type == d.Action.Operation && op.NextRetryTime.IsZero() && in.PassedGeneration == in.VM.Generation
	return in.Done == d.Action.Operation || requested
}

// decidePending waits for the image to be fetched. It calls the driver when the fetch has ended
// or the spec has changed.
func decidePending(in Input, power Power) Decision {
	server := in.Observed.Server
	if server.Progress != "" && server.Error == "" && in.PassedGeneration == in.VM.Generation {
		return planWait(in, api.OperationCreate, api.ReasonFetching, server.Progress)
	}
	return planCreation(in, power)
}

// decideStopping waits for a stop, whoever requested it, and forces the stop when the grace
// period is over. If the guest has ended by itself and other parts of the server still run,
// such as a sidecar, nobody is stopping the server.
func decideStopping(in Input, power Power) Decision {
	operation := api.OperationStop
	end := ""
	switch op := in.VM.Status.Operation; {
	case op.Type == api.OperationRestart:
		operation, end = api.OperationRestart, op.Run
	case hasGuestEnded(in) && power != PowerOff && !isRestartWanted(in) && op.Type != api.OperationStop:
		return planEndedGuest(in, power)
	default:
		power = PowerOff
	}
	d := planEnsure(in, operation, power, api.ReasonStopping, in.Observed.Server.Progress)
	d.Action.EndRun = end
	if d.Action.EndedByOthers = isEndedByOthers(in, operation); d.Action.EndedByOthers {
		d.Action.StopBy = time.Time{}
		d.Status.Message = strings.TrimSuffix(in.Observed.Server.Disruption+"; "+in.Observed.Server.Progress, "; ")
	}
	switch wait := d.Action.StopBy; {
	case in.Observed.Server.NeedsEnsure, in.Observed.Server.Exit.HasEnded && in.Observed.Server.Disruption == "": // the guest does not need time to shut down
	case wait.IsZero():
		d.Action.Step = StepNone
	case in.Now.Before(wait):
		d.Action.Step, d.WakeAt = StepNone, wait
	}
	return d
}

// hasGuestEnded reports whether the guest of a stopping server has ended by itself. If others are ending the
// server, the guest's end counts only if the status reported it before.
func hasGuestEnded(in Input) bool {
	server := in.Observed.Server
	return server.Exit.HasEnded && (server.Disruption == "" || hasReportedEnd(in))
}

// planEndedGuest waits for the other parts of a server whose guest has ended by itself.
func planEndedGuest(in Input, power Power) Decision {
	server := in.Observed.Server
	if server.NeedsEnsure {
		return planEnsure(in, api.OperationUpdate, power, api.ReasonStopping, server.Progress)
	}
	return planWait(in, in.VM.Status.Operation.Type, api.ReasonStopping, server.Progress)
}

// isEndedByOthers reports whether something other than Drover is ending a run that the spec wants, such as a
// drain. The engine then applies the drain's grace period, not that of the spec.
func isEndedByOthers(in Input, operation api.OperationType) bool {
	return in.Observed.Server.Disruption != "" && operation == api.OperationStop && powerOf(in) != PowerOff
}

func decideOff(in Input) Decision {
	if in.Observed.Server.State != StateStopped {
		return planEnsure(in, api.OperationStop, PowerOff, api.ReasonStopping, "")
	}
	if needsUpdate(in) {
		return planEnsure(in, api.OperationUpdate, PowerOff, api.ReasonUpdating, "")
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseStopped, Reason: api.ReasonStoppedAsAsked, Ready: true, RestartHandled: true, StoppedBySpec: true, Message: in.Observed.Server.Note}}
}

func decidePaused(in Input) Decision {
	switch in.Observed.Server.State {
	case StatePaused:
		if needsUpdate(in) {
			return planEnsure(in, api.OperationUpdate, PowerPaused, api.ReasonUpdating, "")
		}
		return planPaused(in)
	case StateStarting:
		return decideStarting(in, PowerPaused)
	case StateStopped, StateRestarting:
		if hasEndedUnexpectedly(in) {
			return planStartAgain(in, PowerPaused)
		}
		return planEnsure(in, api.OperationStart, PowerPaused, api.ReasonStarting, "")
	case StateRunning, StatePending, StateStopping, StateRemoving, StateUnknown:
	}
	return planEnsure(in, api.OperationPause, PowerPaused, api.ReasonUpdating, "")
}

// planPaused returns the decision for a server that is frozen as specified.
func planPaused(in Input) Decision {
	server := in.Observed.Server
	d := Decision{Status: StatusIntent{Phase: api.PhasePaused, Reason: api.ReasonPausedAsAsked, Ready: true, RestartHandled: true, Message: server.Note}}
	switch {
	case server.ErrorReason != "":
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, server.ErrorReason, server.Error
	case pendingFields(in) != "" && refusedField(in).Field == "":
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonChangePending, PendingText(in.VM.Spec.Action, pendingFields(in))
	}
	return countUntilStable(in, d)
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
	case StatePaused:
		return planEnsure(in, api.OperationResume, PowerOn, api.ReasonStarting, "")
	case StateStarting:
		return decideStarting(in, PowerOn)
	case StateStopped:
		return decideEnded(in)
	case StateRunning, StateRestarting, StatePending, StateStopping, StateRemoving, StateUnknown:
	}
	switch {
	case needsUpdate(in):
		return planEnsure(in, api.OperationUpdate, PowerOn, api.ReasonUpdating, "")
	case in.Observed.Server.State == StateRestarting:
		return planEngineRestart(in)
	}
	return planRunning(in)
}

// decideStarting waits for a start, but calls the driver if the driver has work left, or if the spec has
// changed: the change may provide what the start waits for.
func decideStarting(in Input, power Power) Decision {
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
	if exit := in.Observed.Server.Exit; exit.HasEnded {
		text += ", which " + exitText(exit, false)
	}
	return Decision{Status: StatusIntent{Phase: api.PhaseActive, Reason: api.ReasonRestarting, Message: text}}
}

// planRunning returns the decision for a server that runs as specified.
func planRunning(in Input) Decision {
	server := in.Observed.Server
	d := Decision{Status: StatusIntent{Phase: api.PhaseActive, Reason: api.ReasonRunning, Message: server.Note, Ready: true}}
	switch {
	case server.Error != "":
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, cmp.Or(server.ErrorReason, api.ReasonUnresponsive), server.Error
		if server.HostLost {
			d.Status.Phase = api.PhaseUnknown
		}
	case server.IsBooting:
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonBooting, "the guest boots, and has not started its command"
	case in.Probe.Wanted && !in.Probe.OK && !hasProbePassed(in):
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonProbeFailing, in.Probe.Message
	case refusedField(in).Field != "": // Decide reports it, for every settled state
	case pendingFields(in) != "":
		d.Status.Ready, d.Status.Reason, d.Status.Message = false, api.ReasonChangePending, PendingText(in.VM.Spec.Action, pendingFields(in))
	}
	return countUntilStable(in, d)
}

// countUntilStable keeps the count of short runs until the run has proven stable.
func countUntilStable(in Input, d Decision) Decision {
	stable := in.Since.Run.Add(stableRun)
	if in.VM.Status.Operation.Evicted {
		stable = in.Since.Run.Add(stableAfterEviction)
	}
	if in.VM.Status.Operation.IsCounting() && in.Now.Before(stable) {
		d.Action.Operation, d.WakeAt = api.OperationStart, stable
	}
	return d
}

// hasProbePassed reports whether the probe passed in this run before this controller started
// and has not completed since: the VM was ready, and its run is still the same.
func hasProbePassed(in Input) bool {
	started := in.VM.Status.StartTime
	return !in.Probe.Completed && in.VM.Status.Ready && !started.IsZero() && !HasRestarted(started, in.Observed.Server.StartedAt)
}

// planEnsure returns the decision to call the driver's Ensure.
func planEnsure(in Input, operation api.OperationType, power Power, reason, message string) Decision {
	d := planWait(in, operation, reason, message)
	d.Action.Step, d.Action.Power = StepEnsure, power
	d.Action.StopBy = beganAt(in, operation).Add(gracePeriod(in))
	return d
}

// planWait returns the decision to wait while an operation is under way.
func planWait(in Input, operation api.OperationType, reason, message string) Decision {
	phase := api.PhaseCreating
	if in.Observed.Answer == Present {
		switch in.Observed.Server.State {
		case StateRunning, StateStopping, StateRestarting:
			phase = api.PhaseActive
		case StatePaused:
			phase = api.PhasePaused
		case StateUnknown:
			phase = api.PhaseUnknown
		case StateStopped, StateStarting, StatePending, StateRemoving:
		}
	}
	return Decision{Action: Action{Operation: operation}, Status: StatusIntent{Phase: phase, Reason: reason, Message: message}}
}

// beganAt returns when the operation began, by this process's clock.
func beganAt(in Input, operation api.OperationType) time.Time {
	if in.VM.Status.Operation.Type == operation {
		return in.Since.Operation
	}
	return in.Now
}

// gracePeriod returns how long the guest may take to shut down.
func gracePeriod(in Input) time.Duration {
	return time.Duration(in.VM.Spec.GracePeriodSeconds) * time.Second
}
