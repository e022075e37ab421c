// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// stableRun is how long a run must last so that its crash counts as the first in a row.
//
// countShortRun (internal/controller/outcome.go) counts a start after a crash in status.operation, with failure
// Exited. countUntilStable (power.go) keeps the count until the run is stable; internal/controller/facttimes
// measures the run by this process's clock. Only starts by Drover count: under docker the engine itself restarts a
// container that ended, and Drover starts the server only if the engine does not, or has given up.
const stableRun = 10 * time.Second

// stableAfterEviction replaces stableRun if the host has evicted two runs in a row, as a kubelet evicts a
// pod that fills its disk. Filling the disk takes minutes, and the kubelet checks it every 10 s, so such runs
// are longer than stableRun. Twice the longest backoff is also how a kubelet resets the backoff of containers.
const stableAfterEviction = 2 * maxBackoff

// decideEnded applies the restart policy to a server that is off.
func decideEnded(in Input) Decision {
	exit := in.Observed.Server.Exit
	if !exit.HasEnded && in.VM.Status.Operation.IsCounting() {
		return planCreation(in, PowerOn) // the new pod of an ephemeral server: it has not run, and the crashed run has left nothing
	}
	if !hasEndedUnexpectedly(in) {
		return planEnsure(in, api.OperationStart, PowerOn, api.ReasonStarting, "")
	}
	policy := in.VM.Spec.RestartPolicy
	switch {
	case hasNeverRun(in), wasEndedByOthers(in):
	case exit.Code == 0 && policy != api.RestartAlways && policy != "":
		return planEnded(in, StatusIntent{Phase: api.PhaseStopped, Reason: api.ReasonCompleted, Message: EndText(in.Observed.Server), Ready: true})
	case exit.Code != 0 && policy == api.RestartNever:
		return planEnded(in, StatusIntent{Phase: api.PhaseFailed, Reason: api.ReasonExited, Message: EndText(in.Observed.Server), Stalled: true})
	}
	return planStartAgain(in, PowerOn)
}

// hasEndedUnexpectedly reports whether a run has ended that Drover was not asked to end. The operation
// Stop also records a stop by others. A disruption tells the two apart: driver pod reports one for each
// deletion of a pod. A start after a stop by others counts the ended run. A start after a stop that the
// spec asked for counts nothing, because that stop's operation has been removed from the status.
func hasEndedUnexpectedly(in Input) bool {
	server, status := in.Observed.Server, in.VM.Status
	if !IsStoppedByDrover(status, server.Run) {
		return server.Exit.HasEnded
	}
	op := status.Operation
	return server.Exit.HasEnded && server.Disruption != "" && (op.Type == api.OperationStop || op.IsCounting())
}

// wasEndedByOthers reports whether the run was ended by the host, or by someone who drains the host, and not by
// the guest. A disruption after a reported end, such as the drain of a pod that had failed, does not count.
func wasEndedByOthers(in Input) bool {
	server := in.Observed.Server
	return server.Exit.ByHost || IsStoppedByDrover(in.VM.Status, server.Run) || server.Disruption != "" && server.Exit.Code != 0 && !hasReportedEnd(in)
}

// hasReportedEnd reports whether the status already says that the run has ended, or that its guest has ended by
// itself while other parts of the server run. While others end a run, the operation is Stop.
func hasReportedEnd(in Input) bool {
	known, operation := in.VM.Status.Server, in.VM.Status.Operation.Type
	if HasRestarted(in.VM.Status.StartTime, in.Observed.Server.StartedAt) || operation == api.OperationStart {
		return false
	}
	return known.State == StateStopped || known.State == StateStopping && operation != api.OperationStop && operation != api.OperationRestart
}

// hasNeverRun reports whether no guest ran in the run that has ended. The driver's report NeverRan does not count
// if the run was seen to run: after a crash, a host may refuse that server or no longer know it.
func hasNeverRun(in Input) bool {
	server, known := in.Observed.Server, in.VM.Status.Server
	wasSeen := known.Run != "" && known.Run == server.Run || !in.Since.Run.IsZero()
	return server.Exit.NeverRan && (!wasSeen || server.Exit.StartFailed)
}

// planEnded leaves an ended server off. If the driver still has work to do, such as removing the
// finalizer of a pod that a drain deletes, planEnded calls the driver, with the same status.
func planEnded(in Input, status StatusIntent) Decision {
	d := Decision{Status: status}
	if in.Observed.Server.NeedsEnsure {
		d.Action = planEnsure(in, api.OperationUpdate, PowerOff, "", "").Action
	}
	return d
}

// IsStoppedByDrover reports whether Drover has ended the run on request, or is ending it.
func IsStoppedByDrover(status Status, run string) bool {
	return status.Operation.Type == api.OperationStop || status.Server.StoppedRun != "" && status.Server.StoppedRun == run
}

// planStartAgain starts a server that was ended by its guest or by others, or that never ran: at once after a
// stable run and after the first short run, and with growing delays (Backoff) after further short runs. A
// changed spec ends the delay, since the change may help.
func planStartAgain(in Input, power Power) Decision {
	d := planEnsure(in, api.OperationStart, power, api.ReasonRestarting, EndText(in.Observed.Server))
	starts := failedStarts(in)
	d.Action.ShortRuns, d.Action.CrashedRun, d.Action.Evicted = 1+starts, in.Observed.Server.Run, wasEvicted(in)
	delays := starts
	if starts > 0 && isCounted(in) {
		d.Action.ShortRuns, delays = starts, starts-1
	}
	return delayStart(in, d, delays)
}

// isCounted reports whether the operation already counts the run that has ended.
func isCounted(in Input) bool {
	run := in.Observed.Server.Run
	return run != "" && in.VM.Status.Operation.Run == run
}

// wasEvicted reports whether the host evicted the run that has ended. Once the run is counted, the status also
// tells, because the server may no longer show the eviction.
func wasEvicted(in Input) bool {
	return in.Observed.Server.Exit.Evicted || in.VM.Status.Operation.Evicted && isCounted(in)
}

// delayStart delays a start after short runs. The delay counts from when the end of the last run was first seen.
// During the delay the driver may already clean up what a drain waits for. This update also counts the run, since
// the cleanup may leave no trace of the run.
func delayStart(in Input, d Decision, shortRuns int32) Decision {
	at, passed := in.Since.Exit.Add(Backoff(shortRuns, false)), in.PassedGeneration
	if in.Observed.Answer == Gone {
		passed = in.VM.Status.Operation.Generation
	}
	if shortRuns < 1 || !in.VM.Status.Operation.IsCounting() || passed != in.VM.Generation || !in.Now.Before(at) {
		return d
	}
	d.WakeAt, d.NextTry, d.Status.Phase = at, at, api.PhaseFailed
	if d.Action.Step = StepNone; in.Observed.Server.NeedsEnsure {
		d.Action.Step, d.Action.Operation, d.Action.Power = StepEnsure, api.OperationUpdate, PowerOff
	}
	return d
}

// failedStarts returns how many starts in a row have failed, or led to a run that was
// too short. A run without a guest is too short, even if fetching its image took long.
func failedStarts(in Input) int32 {
	op, stable := in.VM.Status.Operation, stableRun
	if op.Evicted && wasEvicted(in) {
		stable = stableAfterEviction
	}
	if op.Type != api.OperationStart || !hasNeverRun(in) && runTime(in) >= stable {
		return 0
	}
	return op.Attempts
}

// runTime returns how long the ended run lasted: by this process's clock if this process
// observed the run, otherwise by the engine's clock. A run after a crash counts as 0 if its
// start is unknown, because nothing proves that the run was stable.
func runTime(in Input) time.Duration {
	switch {
	case !in.Since.Run.IsZero():
		return in.Since.Exit.Sub(in.Since.Run)
	case in.Observed.Server.StartedAt.IsZero() && in.VM.Status.Operation.IsCounting():
		return 0
	}
	return in.Observed.Server.Exit.At.Sub(in.Observed.Server.StartedAt)
}

// EndText says how the last run of a server ended. If others ended the run too, the text does not
// claim that the server ended by itself.
func EndText(server Server) string {
	text := "the server " + exitText(server.Exit, server.Disruption != "")
	if server.Exit.Message != "" {
		text += ": " + server.Exit.Message
	}
	if server.Disruption != "" {
		text += ", and " + server.Disruption
	}
	return text
}

func exitText(exit Exit, isDisrupted bool) string {
	switch {
	case exit.Code == 0 && exit.NeverRan:
		return "was removed before it ran"
	case exit.Code == 0 && !isDisrupted && !exit.ByHost:
		return "ended by itself with code 0"
	case exit.Code != 0 && exit.Reason != "" && exit.Reason != "Error":
		return fmt.Sprintf("ended with code %d (%s)", exit.Code, exit.Reason)
	}
	return fmt.Sprintf("ended with code %d", exit.Code)
}
