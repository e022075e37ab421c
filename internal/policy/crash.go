// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// stableRun is how long a run must last for the count of crashes in a row to start
// from zero at its end.
//
// countShortRun (internal/controller/outcome.go) counts a start after a crash in
// status.operation, whose failure is then Exited, and countUntilStable (power.go) keeps the
// count until the run is stable, which internal/controller/facttimes measures by this
// process's clock. Only starts by Drover count: under docker the engine itself restarts a
// container that ended, and a server gets here where the engine does not, or has given up.
const stableRun = 10 * time.Second

// stableAfterEviction takes the place of stableRun if the host has evicted two runs in a row, as a kubelet
// does with a pod that fills its disk. Filling the disk takes minutes, and the kubelet looks every 10 s, so
// such runs are longer than stableRun. It is twice the longest backoff, as for the containers of a kubelet.
const stableAfterEviction = 2 * maxBackoff

// decideEnded applies the restart policy to a server that is off.
func decideEnded(in Input) Decision {
	exit := in.Observed.Server.Exit
	if !exit.HasEnded && in.VM.Status.Operation.IsCounting() {
		return planCreation(in, PowerOn) // the pod of an ephemeral server that has not run: nothing is left of the run before
	}
	if !hasEndedUnasked(in) {
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

// hasEndedUnasked reports whether a run is over that Drover was not asked to end. The operation Stop
// also stands for a stop by others, which a disruption shows; driver pod shows one for each deletion
// of a pod. A start after a stop by others counts it. The operation of a stop that has led to a server
// which is off as asked is over, and the start after it counts nothing.
func hasEndedUnasked(in Input) bool {
	server, status := in.Observed.Server, in.VM.Status
	if !IsStoppedByDrover(status, server.Run) {
		return server.Exit.HasEnded
	}
	op := status.Operation
	return server.Exit.HasEnded && server.Disruption != "" && (op.Type == api.OperationStop || op.IsCounting())
}

// wasEndedByOthers reports whether the host, or someone who drains it, has ended the run, and not the guest. A
// disruption after a reported end, such as the drain of a pod that had failed, does not count.
func wasEndedByOthers(in Input) bool {
	server := in.Observed.Server
	return server.Exit.ByHost || IsStoppedByDrover(in.VM.Status, server.Run) || server.Disruption != "" && server.Exit.Code != 0 && !hasReportedEnd(in)
}

// hasReportedEnd reports whether the status has the end of the run: that it is over, or that its guest had ended by
// itself while other parts of the server had not. While others end a run, the operation is Stop.
func hasReportedEnd(in Input) bool {
	known, operation := in.VM.Status.Server, in.VM.Status.Operation.Type
	if HasRestarted(in.VM.Status.StartTime, in.Observed.Server.StartedAt) || operation == api.OperationStart {
		return false
	}
	return known.State == StateStopped || known.State == StateStopping && operation != api.OperationStop && operation != api.OperationRestart
}

// hasNeverRun reports whether no guest has run in the run that is over. A host that is back after a crash may
// refuse a server that was seen to run, or no longer know it.
func hasNeverRun(in Input) bool {
	server, known := in.Observed.Server, in.VM.Status.Server
	wasSeen := known.Run != "" && known.Run == server.Run || !in.Since.Run.IsZero()
	return server.Exit.NeverRan && (!wasSeen || server.Exit.NotStarted)
}

// planEnded leaves a server off that has ended. Work that the driver has left, such as removing the
// finalizer of a pod that a drain deletes, changes nothing of the status.
func planEnded(in Input, status StatusIntent) Decision {
	d := Decision{Status: status}
	if in.Observed.Server.NeedsEnsure {
		d.Action = planEnsure(in, api.OperationUpdate, PowerOff, "", "").Action
	}
	return d
}

// IsStoppedByDrover reports whether a run is over because Drover ended it on
// request, or is about to.
func IsStoppedByDrover(status Status, run string) bool {
	return status.Operation.Type == api.OperationStop || status.Server.StoppedRun != "" && status.Server.StoppedRun == run
}

// planStartAgain starts a server that was ended by its guest or by others, or never ran: at once after a
// stable run and after the first short one, with growing delays (Backoff) after more of them. A changed
// spec, which may help, does not wait.
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

// isCounted reports whether the operation counts the run that is over already.
func isCounted(in Input) bool {
	run := in.Observed.Server.Run
	return run != "" && in.VM.Status.Operation.Run == run
}

// wasEvicted reports whether the host has evicted the run that is over. What is left of the run may not show
// that any more once it is counted.
func wasEvicted(in Input) bool {
	return in.Observed.Server.Exit.Evicted || in.VM.Status.Operation.Evicted && isCounted(in)
}

// delayStart delays a start after short runs, from when the end of the last one was first seen. What a drain
// waits for is removed meanwhile, and the run is counted with that, since nothing may be left of it.
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
// too short. One in which no guest ran is too short, however long a fetch took in it.
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

// runTime returns how long the run that is over has lasted: by this process's clock
// if it observed the run, else by the engine's. A run after a crash whose start is unknown
// counts as 0: nothing proves that it was stable.
func runTime(in Input) time.Duration {
	switch {
	case !in.Since.Run.IsZero():
		return in.Since.Exit.Sub(in.Since.Run)
	case in.Observed.Server.StartedAt.IsZero() && in.VM.Status.Operation.IsCounting():
		return 0
	}
	return in.Observed.Server.Exit.At.Sub(in.Observed.Server.StartedAt)
}

// EndText says how the last run of a server ended. A server whose run others have ended as well is not
// said to have ended by itself.
func EndText(server Server) string {
	text := "the server " + exitText(server.Exit, server.Disruption != "")
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
