// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// isRestartWanted reports whether spec.restartedAt requests a restart that was not done yet. A
// value that the VM had when it was first observed does not request a restart.
func isRestartWanted(in Input) bool {
	want, have := in.VM.Spec.RestartedAt, in.VM.Status.RestartedAt
	if op := in.VM.Status.Operation; isRestartDone(in) {
		have = op.RestartedAt
	}
	return !want.IsZero() && !isSameRequest(want, have) && in.VM.Status.ObservedGeneration > 0
}

// hasNothingToRestart reports whether a restart would end nothing: the server is gone, as the server of an ephemeral
// VM is in the middle of each restart, or it was just created. An answer of another engine does not count.
func hasNothingToRestart(in Input, status StatusIntent) bool {
	return in.Observed.Answer == Gone && !status.Unobserved || in.Done == api.OperationCreate
}

// isSameRequest reports whether a spec and a status have the same restartedAt. The user may have written fractions
// of a second in the spec; the status has whole seconds.
func isSameRequest(want, have time.Time) bool {
	if want.IsZero() || have.IsZero() {
		return want.IsZero() == have.IsZero()
	}
	return want.Truncate(time.Second).Equal(have)
}

// isRestartDone reports whether the run that the restart had to end has been followed by another
// run, even if the other run has already ended.
func isRestartDone(in Input) bool {
	op, run := in.VM.Status.Operation, in.Observed.Server.Run
	return op.Type == api.OperationRestart && run != "" && run != op.Run
}

// decideRestart continues the restart that the status records, or begins a new one. The status
// records the run to end first, so that a crash of the controller does not repeat the restart. It
// also records the restartedAt of the request, so that a later request is not lost.
func decideRestart(in Input) (Decision, bool) {
	op := in.VM.Status.Operation
	underWay := op.Type == api.OperationRestart && !isRestartDone(in)
	if !underWay && (!isRestartWanted(in) || in.Done == api.OperationCreate) {
		return Decision{}, false
	}
	d := planEnsure(in, api.OperationRestart, PowerOn, api.ReasonRestarting, "")
	// The stop has not begun yet, and the work before it must not use up the grace period.
	d.Action.BeginsStop, d.Action.StopBy = true, in.Now.Add(gracePeriod(in))
	d.Action.EndRun, d.Action.RecordFirst = in.Observed.Server.Run, true
	if underWay {
		d.Action.EndRun, d.Action.RecordFirst = op.Run, in.Observed.Server.Run == op.Run && isOutdated(in)
	}
	return d, true
}

// isOutdated reports whether the restart under way was requested by an older restartedAt than the one in
// the spec. If the run has not ended yet, this restart satisfies both requests.
func isOutdated(in Input) bool {
	want, have := in.VM.Spec.RestartedAt, in.VM.Status.Operation.RestartedAt
	return !want.IsZero() && !isSameRequest(want, have)
}
