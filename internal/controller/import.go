// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/inventory"
)

// importStatus fills in, once, what versions before status.binding recorded only in
// conditions and reasons. Nothing else reads those.
func importStatus(status *api.VirtualMachineStatus, seen inventory.Observation) {
	if status.Binding != nil || status.Server == nil && status.Operation == nil {
		return
	}
	importOperation(status)
	if c := meta.FindStatusCondition(status.Conditions, api.ConditionRestartRequired); c != nil && status.PendingFields == nil {
		fields, _, _ := strings.Cut(c.Message, ":")
		status.PendingFields = strings.Split(fields, ", ")
	}
	running := meta.FindStatusCondition(status.Conditions, api.ConditionRunning)
	if running == nil || running.Reason != api.ReasonStoppedAsAsked || status.Server == nil || seen.Answer != inventory.Present {
		return
	}
	if !HasRestarted(status, seen.Server) {
		status.Server.StoppedRun = seen.Server.Run
	}
}

func importOperation(status *api.VirtualMachineStatus) {
	op := status.Operation
	if op == nil || op.Attempts == 0 || op.Failure != "" {
		return
	}
	op.Reason = status.Reason
	switch {
	case conditionTrue(status.Conditions, api.ConditionStalled):
		op.Failure = api.FailureRefused
	case status.Reason == api.ReasonExhausted:
		op.Failure = api.FailureExhausted
	case status.Reason == api.ReasonRestarting, op.Type == api.OperationStart && op.NextRetryTime == nil:
		op.Failure, op.Reason = api.FailureExited, api.ReasonRestarting
	default:
		op.Failure = api.FailureFailed
	}
}
