// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// needsUpdate reports whether the spec must be passed to the driver: there is a change, or
// the driver asks for it.
func needsUpdate(in Input) bool { return in.Observed.Server.NeedsEnsure || hasChange(in) }

// hasChange reports whether this generation of the spec was not passed to the driver yet,
// or the server differs from it.
func hasChange(in Input) bool {
	if in.VM.Generation != in.PassedGeneration {
		return true
	}
	if pendingFields(in) != "" {
		return in.Done == "" && HasRestarted(in.VM.Status.StartTime, in.Observed.Server.StartedAt)
	}
	return hasDrifted(in.VM.Spec.Size, in.Observed.Server.Applied)
}

// pendingFields returns the fields that wait for a restart, as Ensure last
// reported.
func pendingFields(in Input) List {
	if in.Observed.Answer == Gone {
		return ""
	}
	return in.VM.Status.PendingFields
}

// PendingText says that fields wait for a restart, which nothing starts while the server is to
// be paused.
func PendingText(action api.Action, fields List) string {
	how := "change spec.restartedAt to restart now"
	if action == api.ActionPaused {
		how = "set spec.action to active first, then change spec.restartedAt"
	}
	return strings.Join(fields.Names(), ", ") + ": applied at the next restart (" + how + ")"
}

// refusedField returns the field that the server cannot have, as Ensure last
// reported.
func refusedField(in Input) api.RefusedField {
	if in.Observed.Answer == Gone {
		return api.RefusedField{}
	}
	return in.VM.Status.RefusedField
}

// HasRestarted reports whether a server was started since a status, which has microseconds,
// recorded a start.
func HasRestarted(recorded, started time.Time) bool {
	return !recorded.IsZero() && !started.IsZero() && !recorded.Equal(started.Truncate(time.Microsecond))
}

// hasDrifted reports whether the server's size was changed outside of Drover.
func hasDrifted(want, have Size) bool {
	return have.CPUMilli != 0 && have.CPUMilli != want.CPUMilli ||
		have.MemoryBytes != 0 && have.MemoryBytes != want.MemoryBytes
}
