// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// isRestartWanted reports whether spec.restartedAt requests a restart that was not
// done. A value that is present when the VM is first observed requests none.
func isRestartWanted(in Input) bool {
	want, have := in.VM.Spec.RestartedAt, in.VM.Status.RestartedAt
	if op := in.VM.Status.Operation; isRestartDone(in) {
		have = op.RestartedAt
	}
	return !want.IsZero() && !isSameRequest(want, have) && in.VM.Status.ObservedGeneration > 0
}

// hasNothingToRestart reports whether there is no run that a restart could end: the server is gone, as happens
// to an ephemeral VM in the middle of each restart, or was just created. That another engine does not have it
// says nothing.
func hasNothingToRestart(in Input, status StatusIntent) bool {
	return in.Observed.Answer == Gone && !status.Unobserved || in.Done == api.OperationCreate
}

// isSameRequest reports whether a spec's restartedAt is the one of a status, which has whole
// seconds and no zero time. A spec has the time as its user wrote it, perhaps with fractions.
func isSameRequest(want, have time.Time) bool {
	if want.IsZero() || have.IsZero() {
		return want.IsZero() == have.IsZero()
	}
	return want.Truncate(time.Second).Equal(have)
}

// isRestartDone reports whether the run that a restart must end is over and another
// has begun, however that one ended.
func isRestartDone(in Input) bool {
	op, run := in.VM.Status.Operation, in.Observed.Server.Run
	return op.Type == api.OperationRestart && run != "" && run != op.Run
}

// decideRestart continues a restart that the status records, or begins one. The run
// that it ends is recorded first, so that no crash repeats the restart. The
// restartedAt that requested it is recorded with it, so that a later one is not lost.
func decideRestart(in Input) (Decision, bool) {
	op := in.VM.Status.Operation
	underWay := op.Type == api.OperationRestart && !isRestartDone(in)
	if !underWay && (!isRestartWanted(in) || in.Done == api.OperationCreate) {
		return Decision{}, false
	}
	d := planEnsure(in, api.OperationRestart, PowerOn, api.ReasonRestarting, "")
	// The stop has yet to begin: what precedes it must not use up the grace period.
	d.Action.BeginsStop, d.Action.StopBy = true, in.Now.Add(gracePeriod(in))
	d.Action.EndRun, d.Action.RecordFirst = in.Observed.Server.Run, true
	if underWay {
		d.Action.EndRun, d.Action.RecordFirst = op.Run, in.Observed.Server.Run == op.Run && isOutdated(in)
	}
	return d, true
}

// isOutdated reports whether an older restartedAt than the one in the spec requested
// the restart under way. If its run has not ended yet, the restart satisfies both.
func isOutdated(in Input) bool {
	want, have := in.VM.Spec.RestartedAt, in.VM.Status.Operation.RestartedAt
	return !want.IsZero() && !isSameRequest(want, have)
}
