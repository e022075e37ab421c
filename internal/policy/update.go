// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"time"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// needsUpdate reports whether the spec must be passed to the driver, because there is a change or
// because the driver asks for the spec.
func needsUpdate(in Input) bool { return in.Observed.Server.NeedsEnsure || hasChange(in) }

// hasChange reports whether the driver has yet to get this generation of the spec, or the server
// differs from the spec.
func hasChange(in Input) bool {
	if in.VM.Generation != in.PassedGeneration {
		return true
	}
	if pendingFields(in) != "" {
		return in.Done == "" && HasRestarted(in.VM.Status.StartTime, in.Observed.Server.StartedAt)
	}
	return hasDrifted(in.VM.Spec.Size, in.Observed.Server.Applied)
}

// pendingFields returns the fields that wait for a restart, as the last Ensure reported them.
func pendingFields(in Input) List {
	if in.Observed.Answer == Gone {
		return ""
	}
	return in.VM.Status.PendingFields
}

// PendingText says that fields wait for a restart, and how to restart. While the spec wants the server
// paused, spec.restartedAt alone does not restart it.
func PendingText(action api.Action, fields List) string {
	how := "change spec.restartedAt to restart now"
	if action == api.ActionPaused {
		how = "set spec.action to active first, then change spec.restartedAt"
	}
	return strings.Join(fields.Names(), ", ") + ": applied at the next restart (" + how + ")"
}

// refusedField returns the field that the driver cannot apply to the server, as the last Ensure reported it.
func refusedField(in Input) api.RefusedField {
	if in.Observed.Answer == Gone {
		return api.RefusedField{}
	}
	return in.VM.Status.RefusedField
}

// HasRestarted reports whether a server has started again since the status recorded its start. Times in
// a status have microseconds.
func HasRestarted(recorded, started time.Time) bool {
	return !recorded.IsZero() && !started.IsZero() && !recorded.Equal(started.Truncate(time.Microsecond))
}

// hasDrifted reports whether the server has another size than the spec, because something outside of
// Drover changed it.
func hasDrifted(want, have Size) bool {
	return have.CPUMilli != 0 && have.CPUMilli != want.CPUMilli ||
		have.MemoryBytes != 0 && have.MemoryBytes != want.MemoryBytes
}
